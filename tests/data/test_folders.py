"""Folders as people have them: what is a class, a split, a wrapper, and what is said of it before any work."""

import io
import shutil
import struct
import unicodedata
import warnings
import zipfile

import numpy as np
import pytest
from helpers import image_files as files
from PIL import Image

from anyshot.data.folders import read_folder
from anyshot.data.layout import PackOptions, SourceOptions
from anyshot.data.open import open_source
from anyshot.data.pack import pack
from anyshot.data.pictures import decode_picture, explain_unreadable
from anyshot.data.source import describe_notes, describe_source, select_splits
from anyshot.data.store import open_store
from anyshot.errors import BadInput
from anyshot.inspect.doctor import diagnose, diagnose_to_folder


def folder(tmp_path, *paths):
    """A folder with a small picture at each path."""
    for number, path in enumerate(paths):
        files.write(tmp_path / "photos" / path, seed=number)
    return tmp_path / "photos"


def listed(root, depth=0, **options):
    return read_folder(root, PackOptions(depth=depth, **options), True)


def read(root, depth=0):
    """Class and split of every picture, by its path."""
    return {item.name: (item.class_name, item.split) for item in listed(root, depth).items}


def zipped(root, path, wrapped_in=""):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, f"{wrapped_in}{file.relative_to(root)}")
        archive.writestr("__MACOSX/._photo.png", b"resource fork")
    return path


@pytest.mark.parametrize("wrapped_in", ["", "My Photos/", "a/b/"])
def test_a_wrapped_zip_is_that_folder(tmp_path, wrapped_in):
    root = folder(tmp_path, "cat/0.png", "cat/1.png", "dog/0.png", "dog/2024/1.png")
    with open_source(zipped(root, tmp_path / "photos.zip", wrapped_in)) as source:
        assert sorted((item.class_name, item.read()) for item in source.items) == sorted(
            (item.class_name, item.read()) for item in listed(root).items
        )
    store = pack("folder", tmp_path / "photos.zip", tmp_path / "s", size=8, split=(0, 0, 1))
    assert store.class_names == ("cat", "dog")


@pytest.mark.parametrize("wrapped_in", ["My Photos/", "a/b/"])
def test_splits_in_a_wrapped_zip_are_splits(tmp_path, wrapped_in):
    root = folder(tmp_path, "train/cat/0.png", "train/dog/0.png", "test/cat/0.png", "test/dog/0.png")
    with open_source(zipped(root, tmp_path / "photos.zip", wrapped_in)) as source:
        assert {(item.class_name, item.split) for item in source.items} == {
            (name, split) for name in ("cat", "dog") for split in ("train", "test")
        }


def test_split_folders_beside_others_are_splits(tmp_path):
    root = folder(tmp_path, "train/cat/0.png", "test/cat/0.png", "icons/cat/0.png", "readme.png")
    assert read(root) == {"train/cat/0.png": ("cat", "train"), "test/cat/0.png": ("cat", "test")}
    words = " ".join(describe_notes(listed(root)))
    assert "left out, 2 files: beside test, train, in none of them (icons/cat/0.png, readme.png)" in words


def test_without_a_training_folder_the_others_are_it(tmp_path):
    root = folder(tmp_path, "cat/0.png", "dog/0.png", "test/cat/0.png", "test/dog/0.png")
    assert read(root)["cat/0.png"] == ("cat", "train")
    assert read(root)["test/cat/0.png"] == ("cat", "test")


def test_a_class_may_be_called_test(tmp_path):
    root = folder(tmp_path, "test/0.png", "cat/0.png")
    assert read(root) == {"test/0.png": ("test", None), "cat/0.png": ("cat", None)}


def test_val_and_validation_together_are_all_their_files(tmp_path):
    root = folder(tmp_path, "train/a/0.png", "val/a/1.png", "validation/a/2.png", "Valid/b/3.png", "test/a/4.png")
    assert sorted(name for name, (_, split) in read(root).items() if split == "val") == [
        "Valid/b/3.png",
        "val/a/1.png",
        "validation/a/2.png",
    ]


def test_leaf_folders_are_classes_with_names_that_stay_apart(tmp_path):
    paths = ["Fruit/Apple/Gala/0.png", "Fruit/Other/0.png", "Carton/Other/0.png", "Carton/Milk/0.png"]
    root = folder(tmp_path, *(f"{split}/{path}" for split in ("train", "test") for path in paths))
    assert {name for name, _ in read(root).values()} == {"Gala", "Fruit/Other", "Carton/Other", "Milk"}
    assert read(root)["test/Carton/Other/0.png"] == ("Carton/Other", "test")
    assert {name for name, _ in read(root, depth=1).values()} == {"Fruit", "Carton"}
    assert {name for name, _ in read(root, depth=2).values()} == {"Apple", "Fruit/Other", "Carton/Other", "Milk"}
    assert len(read(root, depth=3)) == 2  # the others lie in no folder that deep
    with pytest.raises(BadInput, match="--depth 4 may be too deep"):
        read(root, depth=4)


@pytest.mark.parametrize("inner", [("2023", "2024-05"), ("front", "side")])
def test_dates_and_views_are_parts_of_a_class(tmp_path, inner):
    root = folder(tmp_path, *(f"{name}/{part}/0.png" for name in ("cat", "dog") for part in inner))
    assert {name for name, _ in read(root).values()} == {"cat", "dog"}
    assert len({name for name, _ in read(root, depth=2).values()}) == 4
    hint = "`--group-depth 2` says that pictures of one folder below belong together"
    assert any(hint in note for note in listed(root).notes)
    assert not any("--group-depth" in note for note in listed(root, group_depth=2).notes)


def test_a_folder_that_holds_pictures_is_a_class_with_all_below(tmp_path):
    root = folder(tmp_path, "cat/0.png", "cat/kittens/1.png", "dog/0.png")
    assert {name for name, _ in read(root).values()} == {"cat", "dog"}
    assert any("cat holds pictures and folders of pictures" in note for note in listed(root).notes)


def test_twins_are_pointed_out(tmp_path):
    names = ["rose", "ROSE", unicodedata.normalize("NFC", "Blüte"), unicodedata.normalize("NFD", "Blüte"), "oak"]
    words = describe_notes(listed(folder(tmp_path, *(f"{name}/0.png" for name in names))))
    assert sum("are they one?" in one for one in words) == 2
    assert any("'ROSE' and 'rose'" in one for one in words)
    assert any("\\xfc" in one and "\\u0308" in one for one in words)


def test_what_is_left_out_is_said_with_the_reason(tmp_path):
    root = folder(tmp_path, "cat/0.png", "dog/0.png", "loose.jpg")
    for name in ("cat/._0.png", "cat/IMG_1.CR2", "cat/IMG_2.MOV", "cat/Thumbs.db"):
        files.write(root / name, b"?")
    (root / "nothing").mkdir()
    words = describe_source(listed(root), root)
    assert words.startswith(f"{root}: 2 classes, 2 pictures (1 each).")
    for part in (
        "1 file: hidden, such as the ._ files of macOS (cat/._0.png)",
        "camera raw, which has to be saved as JPEG or TIFF first (cat/IMG_1.CR2)",
        "a film (cat/IMG_2.MOV)",
        "no picture by its name (cat/Thumbs.db)",
        "in no class folder (loose.jpg)",
        "nothing has no images",
    ):
        assert part in words


def test_links_that_lead_in_circles_end(tmp_path):
    root = folder(tmp_path, "cat/0.png", "dog/0.png")
    (root / "cat" / "again").symlink_to(root)
    assert len(read(root)) < 20


def test_class_folders_that_link_to_each_other_are_read_in_linear_time(tmp_path):
    """Along every path through nine such folders there would be a million files."""
    names = "abcdefghi"
    root = files.class_folders(tmp_path / "photos", names, 1)
    for one in names:
        for other in set(names) - {one}:
            (root / one / other).symlink_to(root / other, target_is_directory=True)
    source = listed(root, 1)
    assert {item.class_name for item in source.items} == set(names)
    assert 9 <= len(source.items) <= 18
    assert any("another link" in why for _, why in source.skipped)


def test_a_link_to_a_class_folder_is_followed(tmp_path):
    root = files.class_folders(tmp_path / "photos", "ab", 2)
    files.class_folders(tmp_path / "elsewhere", "c", 2)
    (root / "c").symlink_to(tmp_path / "elsewhere" / "c", target_is_directory=True)
    assert [item.class_name for item in listed(root).items] == list("aabbcc")


def test_heic_is_read_with_its_extra_and_named_without(tmp_path, monkeypatch):
    heif = pytest.importorskip("pillow_heif")
    photo = Image.fromarray(files.pixels(3, 64, 64))
    file = io.BytesIO()
    heif.from_pillow(photo).save(file, quality=95)
    root = folder(tmp_path, "cat/0.png", "dog/0.png")
    files.write(root / "cat" / "IMG_0001.HEIC", file.getvalue())
    assert np.abs(decode_picture(file.getvalue(), 64, "crop").astype(int) - np.asarray(photo)).mean() < 8
    assert "cat/IMG_0001.HEIC" in read(root)
    monkeypatch.setattr("anyshot.data.folders.SUFFIXES", frozenset({".png", ".jpg"}))
    monkeypatch.setattr("anyshot.data.pictures.FORMATS", ("PNG", "JPEG"))
    assert any("anyshot[heic]" in one and "IMG_0001.HEIC" in one for one in describe_notes(listed(root)))
    files.write(root / "cat" / "named-jpeg.jpg", file.getvalue())  # as some programs leave them
    store = pack("folder", root, tmp_path / "s", size=8, split=(0, 0, 1))
    assert "anyshot[heic]" in store.about["skipped"][0]["why"]


@pytest.mark.parametrize("end", [40, -10])  # within the header, and within the picture
def test_a_damaged_heic_is_called_damaged_where_the_extra_is_installed(end):
    heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    heif.from_pillow(Image.fromarray(files.pixels(3, 64, 64))).save(file)
    data = file.getvalue()[:end]
    with pytest.raises((OSError, ValueError)) as error:
        decode_picture(data, 64, "crop")
    assert explain_unreadable(error.value, data) == "it is HEIC, damaged or cut short"


RAMP = np.linspace(0, 1, 32)[None].repeat(32, 0)


def tiff(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    return file.getvalue()


@pytest.mark.parametrize("top", [255, 1023, 4095, 16383, 65535])
@pytest.mark.parametrize("form", ["grey", "colour", "colour, big end first", "colour, compressed"])
def test_deep_pictures_are_scaled_by_their_range(top, form):
    values = (RAMP * top).astype(np.uint16)
    colours = np.stack([values, values[:, ::-1], values.T], -1)
    big, compressed = "big" in form, "compressed" in form
    data = tiff(values) if form == "grey" else files.deep_tiff(colours, big, compressed)
    wanted = np.stack([values] * 3, -1) if form == "grey" else colours
    assert np.abs(decode_picture(data, None, "crop") - wanted / top * 255).max() < 1


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 255), (-1, 1), (0, 5000), (-40, 90)])
def test_fractions_are_scaled_by_their_range(low, high):
    data = tiff((low + RAMP * (high - low)).astype(np.float32))
    assert np.abs(decode_picture(data, None, "crop")[..., 0] - RAMP * 255).max() <= 0.6


def test_fractions_that_are_no_numbers_are_dark():
    values = RAMP.astype(np.float32)
    values[0, :3] = [np.nan, np.inf, -np.inf]
    assert decode_picture(tiff(values), None, "crop")[0, :3].max() == 0


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("header", ["file", "filename", "image"])
def test_tables_as_spreadsheets_write_them(tmp_path, separator, header):
    root = folder(tmp_path, "0.png", "1.png")
    rows = [(header, "class"), ("0.png", "a, b"), ("1.png", "c")]
    quoted = "\r\n".join(separator.join(f'"{value}"' for value in row) for row in rows)
    (root / "table.csv").write_bytes(b"\xef\xbb\xbf" + quoted.encode())
    with open_source(root / "table.csv") as source:
        assert [(item.name, item.class_name) for item in source.items] == [("0.png", "a, b"), ("1.png", "c")]


def test_a_table_that_names_a_picture_twice_or_under_two_labels_is_reported(tmp_path):
    for name in ("1", "2", "3"):
        files.write(tmp_path / f"{name}.png")
    rows = ["path,label", "1.png,a", "1.png,a", "2.png,a", "./2.png,b", "3.png,b"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    with open_source(tmp_path / "t.csv") as source:
        words = describe_source(source, tmp_path / "t.csv")
    assert "names 2 pictures more than once (1.png, 2.png)" in words
    assert "1 picture of them under different labels (2.png: a and b)" in words


@pytest.mark.parametrize("labels", [[["a"], ["b"]], [["a", "b"], []], [[1], [2]], [{"x": 1}, {"x": 2}]])
def test_several_values_are_no_label(tmp_path, labels):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"path": ["1.png", "2.png"], "label": labels}), tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="is several values"), open_source(tmp_path / "t.parquet"):
        pass


def test_a_file_that_fits_two_formats_is_opened_as_the_common_one():
    """As TIFF it has 2x2 pixels, as IM 4x4; what checks an upload knows TIFF and not IM."""
    text = b": x\nImage type: L image\r\nImage size (x*y): 4*4\r\nFile size (no of images): 1\r\n\x1a"
    start = 8 + 512
    entries = [(256, 2), (257, 2), (258, 8), (259, 1), (262, 1), (273, start), (277, 1), (278, 2), (279, 4)]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHIHH", tag, 3, 1, n, 0) for tag, n in entries)
    data = b"II*\0" + struct.pack("<I", start + 16) + text.ljust(512, b"\0") + bytes(range(16)) + table + bytes(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert Image.open(io.BytesIO(data), formats=["IM"]).size == (4, 4)
    assert decode_picture(data, None, "crop").shape == (2, 2, 3)


def test_a_table_is_read_as_its_layout_says(tmp_path):
    root = folder(tmp_path, "0.png")
    (tmp_path / "t.csv").write_text("where,what,when\n0.png,a,train\n")
    layout = SourceOptions(root=root, path_column="where", label_column="what", split_column="when")
    with open_source(tmp_path / "t.csv", layout) as source:
        assert [(item.class_name, item.split) for item in source.items] == [("a", "train")]


def test_one_learns_from_train_and_tests_with_test():
    splits = ["train", "val", "test", "train"]
    assert select_splits(splits, (), for_test=False)[0] == [0, 3]
    assert select_splits(splits, ("train", "val"), for_test=False)[0] == [0, 1, 3]
    assert select_splits(splits, (), for_test=True)[0] == [2]
    assert select_splits(splits[:2], (), for_test=True)[0] == [1]
    assert select_splits(["val", "test"], (), for_test=False)[0] == [0]
    assert select_splits([None, None], (), for_test=False) == ([0, 1], "")
    with pytest.raises(BadInput, match="does not learn from those"):
        select_splits(["test"], (), for_test=False)
    with pytest.raises(BadInput, match="there is no split val here: nothing is divided into train, val and test"):
        select_splits([None, None], ("val",), for_test=False)
    with pytest.raises(BadInput, match="there is no split val here: there are test"):
        select_splits(["test"], ("val",), for_test=True)


def test_stores_keep_the_path_of_every_image_and_old_ones_open(tmp_path):
    root = folder(tmp_path, *(f"{name}/IMG {number}.png" for name in ("cat", "süß\nodd") for number in range(3)))
    shutil.copy(root / "cat" / "IMG 0.png", root / "cat" / "copy.png")
    files.write(root / "cat" / "broken.png", b"")
    store = pack("folder", root, tmp_path / "s", size=8, split=(0, 0, 1))
    assert len(store.names) == len(store.items) == 7
    assert store.names[:4] == ("cat/IMG 0.png", "cat/IMG 1.png", "cat/IMG 2.png", "cat/copy.png")
    assert store.names[4] == "süß\nodd/IMG 0.png"
    for name, image in zip(store.names, store.items, strict=True):
        assert np.array_equal(decode_picture((root / name).read_bytes(), 8, "crop"), image)
    open_store(store.path, verify=True)
    pair = next(finding for finding in diagnose(store).findings if "exact duplicates" in finding.text)
    assert "cat/IMG 0.png and cat/copy.png" in pair.text
    diagnose_to_folder(store)
    assert '"cat/copy.png"' in (store.path / "doctor" / "diagnosis.json").read_text()
    with (store.path / "names.jsonl").open("a") as file:
        file.write('"one more"\n')
    with pytest.raises(BadInput, match="damaged"):
        open_store(store.path, verify=True)
    with pytest.raises(BadInput, match="damaged"):
        open_store(store.path).names  # noqa: B018
    (store.path / "names.jsonl").unlink()
    assert open_store(store.path).names[3] == "item 3"
