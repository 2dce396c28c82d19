"""Own images, tables, data sets and embeddings, in the forms people have them."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import image_files as files
from PIL import Image

from anyshot.data import open as front_door
from anyshot.data.layout import PackOptions
from anyshot.data.npz import read_image_npz
from anyshot.data.pack import pack
from anyshot.data.pictures import decode_picture
from anyshot.data.store import open_store
from anyshot.errors import BadInput

SHARED = Path(__file__).parents[3] / "shared" / "data"
CLASSES = [f"class {index}" for index in range(10)]


def test_a_folder_without_split_is_divided_by_class(tmp_path):
    store = pack("folder", files.class_folders(tmp_path / "photos", CLASSES), tmp_path / "s")
    assert store.items.shape == (30, 92, 92, 3)
    assert [store.class_split.count(split) for split in ("train", "val", "test")] == [6, 2, 2]
    other = pack("folder", tmp_path / "photos", tmp_path / "t", seed=1, split=(0.5, 0, 0.5))
    assert [other.class_split.count(split) for split in ("train", "val", "test")] == [5, 0, 5]


@pytest.mark.parametrize("val", ["val", "Validation"])
def test_a_folder_with_split_keeps_it(tmp_path, val):
    for split, names in (("train", "abc"), (val, "de"), ("test", "fg")):
        files.class_folders(tmp_path / "photos" / split, names, 2)
    store = pack("folder", tmp_path / "photos", tmp_path / "s", size=8)
    assert dict(zip(store.class_names, store.class_split, strict=True)) == {
        **dict.fromkeys("abc", "train"),
        **dict.fromkeys("de", "val"),
        **dict.fromkeys("fg", "test"),
    }


def test_nested_hidden_and_other_files(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abc", 1)
    files.write(root / "a" / "2024" / "deep.JPG", files.encoded(5, kind="JPEG"))
    files.write(root / "a" / "._0.png", b"resource fork")
    files.write(root / "a" / "notes.txt", b"hello")
    files.write(root / ".thumbnails" / "x.png")
    store = pack("folder", root, tmp_path / "s", size=8, split=(0, 0, 1))
    assert store.class_names == ("a", "b", "c")
    assert store.part("test").counts.tolist() == [2, 1, 1]
    assert store.about["skipped"] == []


def test_images_that_are_enlarged_are_noted(tmp_path):
    root = tmp_path / "photos"
    for name in "abc":
        files.write(root / name / "0.png", saved(PHOTO, "PNG"))
    notes = [pack("folder", root, tmp_path / str(size), size=size).about["notes"] for size in (40, 92)]
    assert notes[0] == []
    assert "`--size 40` would store them as they are" in notes[1][0]


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PHOTO = Image.fromarray(files.pixels(3, 40, 40))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM"])
def test_formats(kind):
    gap = np.abs(decode_picture(saved(PHOTO, kind), 40, "crop").astype(int) - np.asarray(PHOTO))
    assert gap.mean() < (8 if kind in ("GIF", "WEBP") else 0.01)


def test_exif_rotation_is_honoured():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn a quarter to the right
    turned = decode_picture(saved(PHOTO, "JPEG", exif=exif, quality=95), 40, "crop")
    assert np.abs(turned.astype(int) - np.asarray(PHOTO.rotate(-90))).mean() < 4


def test_grey_palette_sixteen_bits_and_alpha_become_rgb():
    grey = decode_picture(saved(PHOTO.convert("L"), "PNG"), 40, "crop")
    assert (grey[..., 0] == grey[..., 2]).all()
    assert (
        np.abs(decode_picture(saved(PHOTO.convert("P"), "PNG"), 40, "crop").astype(int) - np.asarray(PHOTO)).mean() < 30
    )
    deep = Image.fromarray(np.asarray(PHOTO.convert("L")).astype(np.uint16) << 8)
    assert np.array_equal(decode_picture(saved(deep, "PNG"), 40, "crop"), grey)
    clear = PHOTO.convert("RGBA")
    clear.putalpha(Image.fromarray(np.where(np.arange(40) < 20, 0, 255).astype(np.uint8)[None].repeat(40, 0)))
    cleared = decode_picture(saved(clear, "PNG"), 40, "crop")
    assert (cleared[:, :20] == 255).all()
    assert np.array_equal(cleared[:, 20:], np.asarray(PHOTO)[:, 20:])


def test_of_an_animation_the_first_frame():
    frames = [Image.fromarray(files.pixels(seed, 40, 40)).quantize() for seed in (3, 4)]
    animated = decode_picture(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]), 40, "crop")
    assert np.abs(animated.astype(int) - np.asarray(frames[0].convert("RGB"))).mean() < 1


@pytest.mark.parametrize("shape", [(300, 400), (401, 299), (92, 500), (60, 61), (92, 92)])
def test_crop_is_resize_then_centre_as_documented(shape):
    image = Image.fromarray(files.pixels(1, *shape))
    shorter = min(image.size)
    resized = image.resize(tuple(int(92 * side / shorter) for side in image.size), Image.Resampling.BILINEAR)
    left, top = (round((side - 92) / 2) for side in resized.size)
    gap = np.abs(
        decode_picture(saved(image, "PNG"), 92, "crop").astype(int) - resized.crop((left, top, left + 92, top + 92))
    )
    assert gap.max() <= 1


def test_a_photo_read_at_reduced_scale_hardly_differs():
    image = Image.fromarray(files.pixels(1, 900, 1200))
    reduced = decode_picture(saved(image, "JPEG", quality=95), 92, "crop")
    assert np.abs(reduced.astype(int) - decode_picture(saved(image, "PNG"), 92, "crop")).mean() < 2


def table(tmp_path, rows, header="path,label", name="t.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


ODD = ["red panda", "Ærø ø", "猫", "a/b", "..", 'quo"te', "-o"]


def test_a_table_with_odd_labels_and_a_root(tmp_path):
    for index in range(len(ODD)):
        files.write(tmp_path / "images" / f"{index} é.png", seed=index)
    quoted = ['"' + label.replace('"', '""') + '"' for label in ODD]
    rows = [f"{index} é.png,{label}" for index, label in enumerate(quoted)]
    store = pack("table", table(tmp_path, rows), tmp_path / "s", size=8, split=(0, 0, 1), root=tmp_path / "images")
    assert sorted(store.class_names) == sorted(ODD)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_tables_of_every_kind_with_a_split_column(tmp_path, kind):
    rows = [("images/0.png", "a", "train"), ("images/1.png", "b", "validation"), ("images/2.png", "c", "test")]
    for index in range(3):
        files.write(tmp_path / "images" / f"{index}.png", seed=index)
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "t.parquet"
        columns = dict(zip(("File", "species", "set"), map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(pyarrow.table(columns), path)
    else:
        comma = "," if kind == "csv" else "\t"
        path = table(tmp_path, [comma.join(row) for row in rows], comma.join(("File", "species", "set")), f"t.{kind}")
    store = pack("table", path, tmp_path / "s", size=8, label_column="species", split_column="set")
    assert (store.class_names, store.class_split) == (("a", "b", "c"), ("train", "val", "test"))


def test_bad_tables_are_told(tmp_path):
    files.write(tmp_path / "0.png")
    cases = [
        (["0.png"], "path,label", "row 2 of .* has 1 values"),
        (["0.png,a", "", "0.png"], "path,label", "row 4 of .* has 1 values"),
        (["0.png,"], "path,label", "item 1 of .* has no label"),
        (["0.png,a"], "where,label", "no path column among where, label: name it with --path-column"),
        (["0.png,a,nowhere"], "path,label,split", "there is no split named 'nowhere'"),
        ([], "path,label", "rows below it"),
        (
            ["missing.png,a"],
            "path,label",
            "none of the pictures that .* names is in .*: name the folder that its paths begin in, --root FOLDER",
        ),
    ]
    for number, (rows, header, message) in enumerate(cases):
        with pytest.raises(BadInput, match=message):
            pack("table", table(tmp_path, rows, header), tmp_path / f"s{number}", split=(0, 0, 1))
    with pytest.raises(BadInput, match="did you mean 'label'"):
        pack("table", table(tmp_path, ["0.png,a"]), tmp_path / "s", label_column="labl")
    np.savez(tmp_path / "vectors.npz", features=np.ones((2, 3)), labels=np.array([1.0, np.nan]))
    with pytest.raises(BadInput, match=r"item 2 of .* has no label"):
        pack("features", tmp_path / "vectors.npz", tmp_path / "s", split=(0, 0, 1))


@pytest.mark.parametrize("form", ["dict", "plain", "text labels"])
def test_hugging_face(tmp_path, form, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name, module in list(sys.modules.items()):  # stand-ins of other tests, which datasets would trip over
        if name.split(".")[0] in ("torchvision", "pandas") and getattr(module, "__spec__", None) is None:
            monkeypatch.delitem(sys.modules, name)
    datasets = pytest.importorskip("datasets")
    names = ["cat", "dog", "owl", "yak"]
    labels = names * 2 if form == "text labels" else [0, 1, 2, 3] * 2
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.Value("string") if form == "text labels" else datasets.ClassLabel(names=names),
        }
    )
    rows = {"picture": [{"bytes": files.encoded(i), "path": None} for i in range(8)], "label": labels}
    whole = datasets.Dataset.from_dict(rows, features)
    if form == "dict":
        parts = {"train": whole.select([0, 4, 1, 5]), "test": whole.select([2, 6, 3, 7])}
        whole = datasets.DatasetDict(parts)
    whole.save_to_disk(tmp_path / "set")
    store = pack("huggingface", tmp_path / "set", tmp_path / "s", size=8)
    assert sorted(store.class_names) == names
    assert store.items.shape == (8, 8, 8, 3)
    if form == "dict":
        assert store.class_split == ("train", "train", "test", "test")
        assert np.array_equal(store.part("test").items[1], decode_picture(files.encoded(6), 8, "crop"))


def test_without_an_extra_its_name_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"x")
    with pytest.raises(BadInput, match=r"anyshot\[huggingface\]"):
        pack("huggingface", tmp_path, tmp_path / "s")
    with pytest.raises(BadInput, match=r"anyshot\[parquet\]"):
        pack("table", tmp_path / "t.parquet", tmp_path / "s")


VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.array([f"class {index % 10}" for index in range(40)])


def features_file(tmp_path, kind):
    path = tmp_path / f"f.{kind}"
    if kind == "npz":
        np.savez(path, features=VECTORS, labels=LABELS)
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"embeddings": VECTORS, "y": np.arange(40) % 10}, path)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"embedding": VECTORS.tolist(), "label": LABELS.tolist()}), path
        )
    return path


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_embeddings(tmp_path, kind):
    store = pack("features", features_file(tmp_path, kind), tmp_path / "s", split=(0.5, 0, 0.5))
    assert store.is_features
    assert store.items.shape == (40, 1, 6)
    assert store.items.dtype == np.float32
    for index, label in enumerate(store.labels):
        name = store.class_names[label].removeprefix("class ")
        assert (store.items[index, 0] == VECTORS[int(name) :: 10]).all(1).any()


@pytest.mark.parametrize("suffix", ["npy", "txt"])
def test_embeddings_with_labels_in_a_second_file(tmp_path, suffix):
    np.save(tmp_path / "x.npy", VECTORS.astype(np.float64))
    labels = tmp_path / f"y.{suffix}"
    if suffix == "npy":
        np.save(labels, LABELS)
    else:
        labels.write_text("\n".join(LABELS))
    store = pack("features", tmp_path / "x.npy", tmp_path / "s", labels=labels)
    assert sorted(set(store.class_names)) == sorted(set(LABELS))


def test_maps_of_a_network_become_positions(tmp_path):
    maps = np.random.default_rng(0).normal(size=(4, 3, 2, 5)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=maps, label=list("abcd"))
    store = pack("features", tmp_path / "f.npz", tmp_path / "s", split=(0, 0, 1))
    assert np.array_equal(store.items[1], maps[1].reshape(3, 10).T)


def test_bad_embeddings_are_told(tmp_path):
    bad = VECTORS.copy()
    bad[7, 2] = np.nan
    for number, (arrays, message) in enumerate(
        [
            ({"features": bad, "label": LABELS}, "vector 7 of .* not finite"),
            ({"features": VECTORS, "label": LABELS[:5]}, f"has {len(VECTORS)} vectors, but there are 5 labels"),
            ({"features": VECTORS[0], "label": LABELS[:6]}, r"\(image, channel\) was expected"),
            ({"features": np.array(["a", "b"]), "label": LABELS[:2]}, "not numbers"),
            ({"features": np.array([{}, 1], dtype=object), "label": LABELS[:2]}, "cannot be read"),
        ]
    ):
        np.savez(tmp_path / f"{number}.npz", **arrays)
        with pytest.raises(BadInput, match=message):
            pack("features", tmp_path / f"{number}.npz", tmp_path / "s")
    np.save(tmp_path / "x.npy", VECTORS)
    with pytest.raises(BadInput, match="no label column"):
        pack("features", tmp_path / "x.npy", tmp_path / "s")
    (tmp_path / "x.pt").touch()
    with pytest.raises(BadInput, match="there is no kind of embedding file named"):
        pack("features", tmp_path / "x.pt", tmp_path / "s")


def npz(path, encoding):
    """Four classes of three 16x16 images in one of the encodings, each readable without loss."""
    images = np.stack([np.full((16, 16, 3), 20 * index, np.uint8) for index in range(12)])
    about = {"labels": np.repeat(np.arange(4), 3), "class_names": list("abcd"), "encoding": encoding}
    about["class_split"] = ["train", "train", "val", "test"]
    if encoding == "raw":
        np.savez(path, images=images, **about)
        return images
    if encoding == "jpeg":
        pieces = [saved(Image.fromarray(image), "JPEG", quality=100) for image in images]
    else:
        sheets = images.reshape(4, 3, 16, 16, 3)
        pieces = []
        for sheet in sheets:
            paper = np.zeros((32, 32, 3), np.uint8)
            paper[:16, :16], paper[:16, 16:], paper[16:, :16] = sheet
            pieces.append(saved(Image.fromarray(paper), "JPEG", quality=100, subsampling=0))
        about |= {"counts": np.full(4, 3), "tile": 16, "columns": 2}
    offsets = np.cumsum([0, *map(len, pieces)])
    np.savez(path, blob=np.frombuffer(b"".join(pieces), np.uint8), offsets=offsets, **about)
    return images


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "mosaic"])
def test_npz_encodings(tmp_path, encoding):
    images = npz(tmp_path / "x.npz", encoding)
    store = pack("npz", tmp_path / "x.npz", tmp_path / "s")
    assert np.abs(store.items.astype(int) - images).max() <= 1
    assert store.class_split == ("train", "train", "val", "test")
    assert pack("npz", tmp_path / "x.npz", tmp_path / "t", size=8).items.shape == (12, 8, 8, 3)


def test_bad_npz_is_told(tmp_path):
    npz(tmp_path / "x.npz", "raw")
    arrays = dict(np.load(tmp_path / "x.npz"))
    for number, (change, message) in enumerate(
        [
            ({"labels": np.arange(12)}, "does not fit together"),
            ({"labels": np.zeros(3, int)}, "does not fit together"),
            ({"encoding": "mosaik"}, "did you mean 'mosaic'"),
            ({"class_split": ["train"] * 3 + ["west"]}, "does not fit together"),
            ({"images": np.zeros((12, 4, 4, 3))}, "does not fit together"),
        ]
    ):
        np.savez(tmp_path / f"{number}.npz", **{**arrays, **change})
        with pytest.raises(BadInput, match=message):
            pack("npz", tmp_path / f"{number}.npz", tmp_path / "s")
    del arrays["labels"]
    np.savez(tmp_path / "y.npz", **arrays)
    with pytest.raises(BadInput, match="has no 'labels'"):
        pack("npz", tmp_path / "y.npz", tmp_path / "s")


@pytest.mark.parametrize(
    ("kind", "source", "fitting"),
    [
        ("folder", "images.npz", {"npz"}),
        ("cub", "images.npz", {"npz"}),
        ("features", "images.npz", {"npz"}),
        ("folder", "vectors.npz", {"features"}),
        ("npz", "vectors.npz", {"features"}),
        ("folder", "other.npz", {"npz", "features"}),
        ("folder", "table.csv", {"table"}),
        ("npz", "table.csv", {"table"}),
        ("table", "vectors.npy", {"features"}),
        ("npz", "photos.zip", {"folder", "huggingface"}),
        ("npz", "photos", {"folder"}),
        ("table", "photos", {"folder"}),
        ("features", "photos", {"folder"}),
        ("folder", "saved", {"huggingface"}),
    ],
)
def test_a_source_of_another_kind_gets_the_name_of_its_own(tmp_path, kind, source, fitting):
    npz(tmp_path / "images.npz", "jpeg")
    np.savez(tmp_path / "vectors.npz", embeddings=VECTORS, label=LABELS)
    np.savez(tmp_path / "other.npz", a=VECTORS)
    np.save(tmp_path / "vectors.npy", VECTORS)
    (tmp_path / "table.csv").write_text("path,label\na.jpg,a\n")
    files.class_folders(tmp_path / "photos", CLASSES, 1)
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(BadInput) as error:
        pack(kind, tmp_path / source, tmp_path / "s")
    assert set(re.findall(r"`anyshot pack (.*?)`", str(error.value))) == fitting
    assert str(error.value).startswith(f"{tmp_path / source} is not a source of kind {kind!r}")
    assert not (tmp_path / ".s.packing").exists()


def test_what_could_be_of_the_kind_is_the_readers_to_judge(tmp_path):
    np.savez(tmp_path / "x.npz", images=VECTORS, label=LABELS)
    assert pack("features", tmp_path / "x.npz", tmp_path / "s", feature_column="images").is_features
    files.class_folders(tmp_path / "photos", CLASSES)
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    assert len(pack("folder", tmp_path / "photos.zip", tmp_path / "t").items) == 30
    (tmp_path / "x.jpg").touch()
    with pytest.raises(BadInput, match="is a file: give the folder"):
        pack("folder", tmp_path / "x.jpg", tmp_path / "u")


@pytest.mark.skipif(not (SHARED / "cub32.npz").is_file(), reason="needs ../shared/data/cub32.npz (not distributed)")
def test_the_real_cub(tmp_path):
    store = pack("npz", SHARED / "cub32.npz", tmp_path / "s")
    assert [store.class_split.count(split) for split in ("train", "val", "test")] == [100, 50, 50]
    assert [len(store.part(split).items) for split in ("train", "val", "test")] == [5903, 2927, 2958]
    assert store.part("test").counts.min() >= 50
    assert store.part("test").items.std() > 30


@pytest.mark.skipif(not (SHARED / "mini32.npz").is_file(), reason="needs ../shared/data/mini32.npz (not distributed)")
def test_the_real_mini_imagenet(tmp_path, monkeypatch):
    source = read_image_npz(SHARED / "mini32.npz", PackOptions(), True)
    assert len(source.items) == 60_000
    few = replace(source, items=source.items[::50])  # twelve of each class
    monkeypatch.setitem(front_door.KINDS, "npz", replace(front_door.KINDS["npz"], read=lambda *_: few))
    store = pack("npz", SHARED / "mini32.npz", tmp_path / "s")
    assert [store.class_split.count(split) for split in ("train", "val", "test")] == [64, 16, 20]
    assert all((store.part(split).counts == 12).all() for split in ("train", "val", "test"))
    assert store.part("test").items.std() > 30


def test_the_command_line(tmp_path):
    files.class_folders(tmp_path / "photos", CLASSES, 2)
    call = [sys.executable, "-m", "anyshot"]
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": ""}
    packed = subprocess.run(
        [*call, "pack", "folder", str(tmp_path / "photos"), "-o", str(tmp_path / "s"), "--size", "16"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "20 items of shape 16x16x3" in packed.stdout
    assert "6 classes" in packed.stdout
    diagnosis = json.loads((tmp_path / "s" / "doctor" / "diagnosis.json").read_text())
    assert diagnosis["splits"]["train"]["classes"] == 6
    with Image.open(tmp_path / "s" / "doctor" / "train.png") as sheet:
        assert sheet.width > 500
    again = subprocess.run(
        [*call, "pack", "folder", str(tmp_path / "photos"), "-o", str(tmp_path / "s")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "Traceback" not in again.stderr
    checked = subprocess.run(
        [*call, "doctor", str(tmp_path / "s"), "--verify"], capture_output=True, text=True, env=environment, check=True
    )
    assert "largest shot with 16 queries" in checked.stdout
    assert open_store(tmp_path / "s", verify=True)
