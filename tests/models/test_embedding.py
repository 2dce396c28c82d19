"""`anyshot embed`: the same features from every kind of source, from every interruption, and read again by all."""

import csv
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers.networks import SAID, colours
from helpers.shell import run
from PIL import Image
from safetensors.numpy import save_file

from anyshot import BadInput, FewShotClassifier
from anyshot.data import pack
from anyshot.data.store import open_store
from anyshot.models.embedders import load_embedder
from anyshot.models.features import embed_path, read_examples

CLASSES, EACH = ("brown", "green", "teal"), 4


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Photos in a folder per class, and a network that takes them; a chunk holds five."""
    monkeypatch.setattr(pack, "CHUNK", 5)
    monkeypatch.chdir(tmp_path)
    colours(tmp_path / "net.onnx", metadata=SAID)
    rng = np.random.default_rng(0)
    for place, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(EACH):
            pixels = (rng.random((20, 24, 3)) * 90 + 50 * place).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{name}{number}.png")
    return tmp_path / "photos"


def as_folder(photos: Path) -> Path:
    return photos


def as_table(photos: Path) -> Path:
    path = photos.parent / "photos.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows(
            [f"photos/{one.parent.name}/{one.name}", one.parent.name] for one in sorted(photos.rglob("*.png"))
        )
    return path


def as_parquet(photos: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    files = sorted(photos.rglob("*.png"))
    images = [{"bytes": one.read_bytes(), "path": one.name} for one in files]
    table = pyarrow.table({"image": images, "label": [one.parent.name for one in files]})
    parquet.write_table(table, photos.parent / "photos.parquet", row_group_size=3)
    return photos.parent / "photos.parquet"


def as_tar(photos: Path) -> Path:
    with tarfile.open(photos.parent / "photos.tar", "w") as tar:
        for one in sorted(photos.rglob("*.png")):
            tar.add(one, f"{one.parent.name}/{one.name}")
    return photos.parent / "photos.tar"


def as_web_shards(photos: Path) -> Path:
    """Several tar files of pictures with their classes beside them."""
    folder = photos.parent / "tars"
    folder.mkdir()
    files = sorted(photos.rglob("*.png"))
    for number in range(2):
        with tarfile.open(folder / f"part-{number}.tar", "w") as tar:
            for place, one in enumerate(files[number * 6 : number * 6 + 6]):
                for suffix, content in (("png", one.read_bytes()), ("cls", one.parent.name.encode())):
                    member = tarfile.TarInfo(f"{place:04d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("form", [as_folder, as_table, as_parquet, as_tar, as_web_shards])
def test_every_kind_of_source_gives_the_features_of_its_pictures(form, photos):
    direct = read_examples(photos, load_embedder("net.onnx"))
    embed_path(form(photos), Path("features"), "net.onnx")
    store = open_store(Path("features"), verify=True)
    assert [store.class_names[label] for label in store.labels] == direct.labels
    np.testing.assert_array_equal(store.items.reshape(12, -1), direct.features.reshape(12, -1))


def test_what_reads_features_finds_what_embed_wrote(photos, monkeypatch):
    said = run("anyshot embed photos -o features --model net.onnx", monkeypatch)
    assert said.code == 0
    assert "features of 12 pictures" in said.out
    direct, again = read_examples(photos, load_embedder("net.onnx")), read_examples(Path("features"), None)
    assert (again.labels, again.names) == (direct.labels, direct.names)
    np.testing.assert_array_equal(again.features.reshape(12, -1), direct.features.reshape(12, -1))
    assert isinstance(again.features, np.memmap)  # not all of them in memory
    assert np.shares_memory(again.select(range(3, 9)).features, again.features)  # some of them neither
    for command in (
        "anyshot evaluate features --shots 1 --queries 2 --episodes 20 --way 3",
        "anyshot fit features -o classifier --head cosine-proto",
    ):
        done = run(command, monkeypatch)
        assert done.code == 0, done
    learned = FewShotClassifier.load("classifier").support_
    vectors = direct.features.reshape(len(CLASSES), EACH, -1).astype(np.float64)
    np.testing.assert_allclose(learned.sums, vectors.sum(1), rtol=1e-12)
    np.testing.assert_array_equal(learned.counts, EACH)


def test_examples_keep_the_splits_of_their_source(photos):
    """Also where no class is in two splits: `fit` learns from train, as it does from the pictures."""
    for name, split in zip(CLASSES, ("train", "train", "test"), strict=True):
        (photos / split).mkdir(exist_ok=True)
        (photos / name).rename(photos / split / name)
    embed_path(photos, Path("features"), "net.onnx")
    assert read_examples(Path("features")).splits == ["train"] * 8 + ["test"] * 4


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_features_as_plain_arrays(suffix, photos, monkeypatch):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    (photos / "teal" / "broken.png").write_bytes(b"no picture")
    said = run(f"anyshot embed photos -o features.{suffix} --model net.onnx", monkeypatch)
    assert (said.code, "12 pictures" in said.out, "broken.png" in said.err) == (0, True, True)
    direct, again = read_examples(photos, load_embedder("net.onnx")), read_examples(Path(f"features.{suffix}"))
    assert (again.labels, again.names) == (direct.labels, direct.names)
    np.testing.assert_array_equal(again.features.reshape(12, -1), direct.features.reshape(12, -1))


@pytest.mark.parametrize("form", [as_table, as_parquet, as_tar, as_web_shards])
def test_every_verb_reads_every_kind_of_source(form, photos):
    """What `embed` reads, `fit` and the others read too."""
    embedder = load_embedder("net.onnx")
    direct, other = read_examples(photos, embedder), read_examples(form(photos), embedder)
    assert other.labels == direct.labels
    np.testing.assert_array_equal(other.features, direct.features)


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_interrupted_it_goes_on_and_ends_with_the_same_features(stop, photos, monkeypatch):
    embed_path(photos, Path("whole"), "net.onnx")
    write, written = pack._write_chunk, []

    def interrupted(path, *results):
        if len(written) == stop:
            raise KeyboardInterrupt
        written.append(path.name)
        return write(path, *results)

    monkeypatch.setattr(pack, "_write_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed_path(photos, Path("features"), "net.onnx")
    assert not Path("features").exists()
    monkeypatch.setattr(pack, "_write_chunk", lambda *given: (written.append(given[0].name), write(*given))[1])
    embed_path(photos, Path("features"), "net.onnx")
    assert content(Path("features")) == content(Path("whole"))
    assert sorted(written) == sorted(set(written))  # none was made twice
    assert len(written) == 3


def test_a_picture_that_changes_between_two_runs_is_embedded_again(photos, monkeypatch):
    """Also where its size stays the same."""
    with monkeypatch.context() as patch:
        patch.setattr(pack, "finish_store", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed_path(photos, Path("features"), "net.onnx")
    os.utime(photos / "brown" / "brown0.png")
    write, made = pack._write_chunk, []
    monkeypatch.setattr(pack, "_write_chunk", lambda *given: (made.append(given[0].name), write(*given))[1])
    embed_path(photos, Path("features"), "net.onnx")
    assert len(made) == 3


def test_the_same_command_twice_makes_nothing_anew(photos, monkeypatch):
    words = embed_path(photos, Path("features"), "net.onnx")
    monkeypatch.setattr(pack, "_write_chunk", None)
    assert embed_path(photos, Path("features"), "net.onnx") == words


@pytest.mark.parametrize("ends", [lambda data: len(data) // 3, lambda data: data.rindex(b"teal") // 512 * 512])
def test_a_tar_file_that_was_cut_is_refused(ends, photos):
    """Also where the cut lies between two pictures: the classes before it would pass for all of them."""
    data = as_tar(photos).read_bytes()
    Path("cut.tar").write_bytes(data[: ends(data)])
    with pytest.raises(BadInput, match=r"cut.tar cannot be read"):
        embed_path(Path("cut.tar"), Path("features"), "net.onnx")
    assert not Path("features").exists()


@pytest.mark.filterwarnings("ignore")  # of Ray, about itself
def test_two_workers_of_ray_write_the_same_features(photos):
    pytest.importorskip("ray")
    embed_path(photos, Path("here"), "net.onnx")
    embed_path(photos, Path("there"), "net.onnx", "ray", 2)
    assert content(Path("there")) == content(Path("here"))


def test_a_picture_that_cannot_be_read_is_named(photos):
    (photos / "green" / "green1.png").write_bytes(b"no picture")
    words = embed_path(photos, Path("features"), "net.onnx")
    assert words == "features: features of 11 pictures; 1 picture could not be read: store.json has the names."
    (skipped,) = open_store(Path("features")).about["skipped"]
    assert skipped["name"] == "green/green1.png"


def test_words_of_embed(photos):
    embed_path(photos, Path("features"), "net.onnx")
    (photos / "teal" / "teal0.png").unlink()
    with pytest.raises(BadInput, match="exists already"):
        embed_path(photos, Path("features"), "net.onnx")
    Path("taken").mkdir()
    Path("taken/letter.txt").write_text("dear")
    with pytest.raises(BadInput, match="exists already"):
        embed_path(photos, Path("taken"), "net.onnx")
    with pytest.raises(BadInput, match="not on 'moon'"):
        embed_path(photos, Path("other"), "net.onnx", on="moon")
    Path("broken.tar").write_bytes(b"x" * 2000)
    with pytest.raises(BadInput, match=r"broken\.tar cannot be read"):
        embed_path(Path("broken.tar"), Path("another"), "net.onnx")


# ------------------------------------------------------------------------------------------- shards of version 0.1


def old_shards(folder: Path, classes: tuple[str, ...] = ("ant", "bee"), each: int = 3) -> None:
    """Features as `anyshot embed` of version 0.1 wrote them, a shard per class."""
    folder.mkdir()
    (folder / "shards.json").write_text(json.dumps({"format": 1, "shards": len(classes)}))
    for number, name in enumerate(classes):
        lines = {"labels": [name] * each, "names": [f"{name}/{i}.jpg" for i in range(each)], "splits": [""] * each}
        tensors = {key: np.frombuffer("\n".join(value).encode(), np.uint8) for key, value in lines.items()}
        tensors |= {"features": np.full((each, 1, 4), number, np.float32), "skipped": np.empty(0, np.uint8)}
        save_file(tensors, folder / f"shard-{number:05d}.safetensors")


def test_shards_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old_shards(Path("shards"))
    assert run("anyshot pack features shards -o store --split 0 0 1 --no-doctor", monkeypatch).code == 0
    for path in ("shards", "store"):
        examples = read_examples(Path(path))
        assert examples.labels == ["ant"] * 3 + ["bee"] * 3
        assert examples.names[3] == "bee/0.jpg"
        np.testing.assert_array_equal(examples.features[:, 0, 0], [0, 0, 0, 1, 1, 1])


def test_damaged_shards_are_told(tmp_path):
    folder = tmp_path / "shards"
    old_shards(folder)
    last = folder / "shard-00001.safetensors"
    last.write_bytes(last.read_bytes()[:-9])
    with pytest.raises(BadInput, match="is damaged"):
        read_examples(folder)
    last.unlink()
    with pytest.raises(BadInput, match=r"shard-00001\.safetensors is missing"):
        read_examples(folder)
    (folder / "shards.json").write_text('{"shards": "many"}')
    with pytest.raises(BadInput, match="how many shards"):
        read_examples(folder)


def test_what_a_kill_at_the_very_end_leaves_is_removed_by_the_same_command(photos):
    embed_path(photos, Path("features"), "net.onnx")
    chunk = Path(".features.packing", "chunks-0", "000000000.npz")
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(b"")
    embed_path(photos, Path("features"), "net.onnx")
    assert not chunk.parent.parent.exists()
