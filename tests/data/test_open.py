"""One front door: what is at a path, and what its readers make of it."""

import io
import json
import pickle
import sys
import tarfile

import numpy as np
import pytest
from helpers import image_files as files
from helpers.classifiers import small_model
from helpers.networks import SAID, colours
from PIL import Image

from anyshot import BadInput
from anyshot.data.benchmarks import published_splits
from anyshot.data.layout import SourceOptions
from anyshot.data.open import find_kind, open_source, open_unlabelled
from anyshot.data.pack import pack
from anyshot.data.pictures import capture_time
from anyshot.data.source import Item, describe_source
from anyshot.data.store import open_store, write_store
from anyshot.models.embedders import load_embedder
from anyshot.models.features import embed_items, read_examples


def photo(year: int = 2020) -> bytes:
    """A JPEG that says when it was taken."""
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x0132] = f"{year}:01:02 03:04:05"
    Image.fromarray(files.pixels(year, 20, 20)).save(out, "JPEG", exif=exif)
    return out.getvalue()


def tar_of(path, **members: bytes):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(f"{name}.jpg".replace("_", "/"))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def parquet_of(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


def items_of(path, labelled=True, **options):
    with open_source(path, SourceOptions(**options), labelled) as source:
        return [(item.class_name, item.split, item.read()) for item in source.items]


# ----------------------------------------------------------------------------------------------------- what is there


def test_a_hidden_folder_beside_tar_files_changes_nothing(tmp_path):
    tar_of(tmp_path / "0.tar", cat_a=photo(), dog_b=photo())
    (tmp_path / ".cache").mkdir()
    assert find_kind(tmp_path) == "tar"


@pytest.mark.parametrize("text", ["string", "large_string", "dictionary"])
def test_a_column_of_text_called_image_holds_paths(tmp_path, text):
    pyarrow = pytest.importorskip("pyarrow")
    names = pyarrow.array(["a.png", "b.png"])
    names = names.dictionary_encode() if text == "dictionary" else names.cast(getattr(pyarrow, text)())
    path = parquet_of(tmp_path / "t.parquet", image=names, label=["cat", "dog"])
    files.write(tmp_path / "a.png", seed=1)
    files.write(tmp_path / "b.png", seed=2)
    assert find_kind(path) == "table"
    assert [item[2] for item in items_of(path)] == [files.encoded(1), files.encoded(2)]


def test_what_pack_reads_is_what_every_verb_reads(tmp_path):
    """`pack` had readers of its own, for fewer kinds of sources."""
    (tmp_path / "tars").mkdir()
    tar_of(tmp_path / "tars" / "0.tar", cat_a=photo(1), cat_b=photo(2))
    tar_of(tmp_path / "tars" / "1.tar", dog_a=photo(3))
    store = pack("folder", tmp_path / "tars", tmp_path / "s", size=8, split=(0, 0, 1))
    assert store.class_names == ("cat", "dog")
    path = parquet_of(tmp_path / "p.parquet", image=[photo(1), photo(2)], label=["cat", "dog"])
    assert pack("table", path, tmp_path / "t", size=8, split=(0, 0, 1)).class_names == ("cat", "dog")


# ----------------------------------------------------------------------------------------------------------- options


def test_an_option_that_does_not_apply_is_told(tmp_path):
    files.class_folders(tmp_path / "photos", ("cat", "dog"), 1)
    with open_source(tmp_path / "photos", SourceOptions(label_column="species", depth=1)) as source:
        words = describe_source(source, tmp_path / "photos")
    assert "--label-column is not used" in words
    assert "--depth is not used" not in words
    with open_unlabelled([tmp_path / "photos"], SourceOptions(path_column="x")) as source:
        assert "--path-column is not used" in source.notes[0]


@pytest.mark.parametrize("name", ["split", "Split", "SPLIT"])
def test_a_column_of_splits_in_any_letters(tmp_path, name):
    files.write(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text(f"path,label,{name}\na.png,cat,Test\n")
    assert items_of(tmp_path / "t.csv")[0][1] == "test"


def test_labels_of_a_dictionary_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    labels = pyarrow.array(["cat", "dog", "cat"]).dictionary_encode()
    path = parquet_of(tmp_path / "p.parquet", image=[photo(1), photo(2), photo(3)], label=labels)
    assert [item[0] for item in items_of(path)] == ["cat", "dog", "cat"]


def test_a_folder_behind_a_link_needs_a_root(tmp_path):
    files.write(tmp_path / "elsewhere" / "0.png", seed=3)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "images").symlink_to(tmp_path / "elsewhere")
    table = tmp_path / "own" / "t.csv"
    table.write_text("path,label\nimages/0.png,cat\n")
    with pytest.raises(BadInput, match=r"lies outside .* with --root FOLDER"):
        items_of(table)
    assert items_of(table, root=tmp_path / "own")[0][2] == files.encoded(3)
    table.write_text("path,label\n../elsewhere/0.png,cat\n")
    with pytest.raises(BadInput, match="lies outside"):
        items_of(table, root=tmp_path / "own")


# ------------------------------------------------------------------------------------------------------ without labels


def as_parquet(folder):
    return parquet_of(folder / "x.parquet", image=[photo(1), photo(2)])


def as_npz(folder):
    np.savez(folder / "x.npz", images=np.stack([files.pixels(seed, 8, 8) for seed in range(2)]))
    return folder / "x.npz"


def as_huggingface(folder):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image()})
    rows = {"image": [{"bytes": photo(year), "path": None} for year in (1, 2)]}
    datasets.Dataset.from_dict(rows, features).save_to_disk(folder / "set")
    return folder / "set"


@pytest.mark.parametrize("form", [as_parquet, as_npz, as_huggingface])
def test_pictures_to_be_classified_need_no_labels(tmp_path, form, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name, module in list(sys.modules.items()):  # stand-ins of other tests, which datasets would trip over
        if name.split(".")[0] in ("torchvision", "pandas") and getattr(module, "__spec__", None) is None:
            monkeypatch.delitem(sys.modules, name)
    with open_unlabelled([form(tmp_path)]) as source:
        assert [item.class_name for item in source.items] == ["", ""]
        assert len(source.items[0].read())


# ------------------------------------------------------------------------------------------------------------ pictures


def test_the_time_of_a_photo_in_a_tar_or_parquet_file(tmp_path):
    tar = tar_of(tmp_path / "x.tar", cat_a=photo(2020), dog_b=photo(2021))
    table = parquet_of(tmp_path / "x.parquet", image=[photo(2020), photo(2021)], label=["cat", "dog"])
    for path in (tar, table):
        with open_source(path) as source:
            first, second = (capture_time(item.read) for item in source.items)
        assert second - first == 366 * 86_400


def test_a_large_picture_is_no_error_for_a_network(tmp_path, monkeypatch):
    """Pillow warns of pictures of 90 million pixels; our own limit holds for what is decoded."""
    embedder = load_embedder(colours(tmp_path / "net.onnx", metadata=SAID))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    assert embedder.prepare(photo()).shape == (32, 32, 3)
    files.write(tmp_path / "photos" / "cat" / "0.jpg", photo())
    assert len(pack("folder", tmp_path / "photos", tmp_path / "s", size=8, split=(0, 0, 1)).items) == 1


def test_whatever_goes_wrong_with_a_picture_has_its_name(tmp_path):
    def fail():
        raise KeyError("bytes")

    def refuse():
        raise BadInput("row 3 has no bytes of a picture.")

    embedder = load_embedder(colours(tmp_path / "net.onnx", metadata=SAID))
    items = [Item("a.jpg", "", read=fail), Item("b.jpg", "", read=refuse), Item("c.jpg", "", read=photo)]
    (batch,) = embed_items(embedder, items)
    assert batch[0].why == "a.jpg cannot be read as an image: KeyError: 'bytes'."
    assert batch[1].why == "b.jpg cannot be read as an image: row 3 has no bytes of a picture."
    assert batch[2].features is not None


def test_stored_images_are_prepared_in_one_way(tmp_path):
    """By a trained model, too, whether all examples are used or those of some splits."""
    small_model().save(tmp_path / "run" / "model.safetensors")
    images = np.stack([files.pixels(seed, 50, 50) for seed in range(6)])
    write_store(tmp_path / "s", [images], [0, 0, 1, 1, 2, 2], ["cat", "cat", "dog"], ["train", "test", "test"])
    embedder = load_embedder(tmp_path / "run")
    every = read_examples(tmp_path / "s", embedder)
    some = read_examples(tmp_path / "s", embedder, choose=lambda splits: ([0, 1, 4, 5], ""))
    np.testing.assert_array_equal(some.features, every.features[[0, 1, 4, 5]])
    np.testing.assert_array_equal(some.items[2].read(), images[4])


# --------------------------------------------------------------------------------------------------- names and labels


def test_a_store_of_features_keeps_their_names(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.eye(2, dtype=np.float32), labels=["cat", "dog"], names=["a.jpg", "b.jpg"])
    pack("features", tmp_path / "x.npz", tmp_path / "s", split=(0, 0, 1))
    assert open_store(tmp_path / "s").names == ("a.jpg", "b.jpg")


@pytest.mark.parametrize("label", ["x", float("nan"), float("inf"), None])
def test_labels_of_tiered_that_are_no_numbers(tmp_path, label):
    wnids = list(published_splits("tiered"))[:1]
    (tmp_path / "train_images_png.pkl").write_bytes(pickle.dumps([files.encoded(0)], 2))
    labels = {"label_specific": [label], "label_specific_str": wnids}
    (tmp_path / "train_labels.pkl").write_bytes(pickle.dumps(labels, 2))
    with pytest.raises(BadInput, match="labels that are no numbers"):
        pack("tiered", tmp_path, tmp_path / "s")


def test_what_a_store_says_of_itself(tmp_path):
    files.class_folders(tmp_path / "photos", "abc", 1)
    pack("folder", tmp_path / "photos", tmp_path / "s", size=8)
    about = json.loads((tmp_path / "s" / "store.json").read_text())["about"]
    assert list(about) == ["kind", "source", "split", "seed", "notes", "fit", "skipped"]
