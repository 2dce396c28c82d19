"""Every kind of source becomes the store it should, whole, resumable, the same whatever the number of threads."""

import csv
import json
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from helpers import image_files as files
from PIL import Image

from anyshot.data import benchmarks
from anyshot.data import pack as packing
from anyshot.data.benchmarks import published_splits
from anyshot.data.pack import divide_classes, pack
from anyshot.data.pictures import FileBytes, decode_picture
from anyshot.data.store import Frames, open_store
from anyshot.errors import BadInput
from anyshot.files import locked
from anyshot.inspect.doctor import diagnose_to_folder


def splits_of(store):
    return {split: store.class_split.count(split) for split in ("train", "val", "test")}


@pytest.fixture(scope="session")
def cub(tmp_path_factory):
    root = tmp_path_factory.mktemp("cub") / "CUB_200_2011"
    names = [f"{number:03}.Bird_{number}" for number in range(1, 201)]
    lists = {"images.txt": [], "image_class_labels.txt": [], "bounding_boxes.txt": []}
    for index in range(400):
        number = index // 2
        name = f"{names[number]}/{index}.jpg"
        files.write(root / "images" / name, files.encoded(index, kind="JPEG"))
        lists["images.txt"].append(f"{index + 1} {name}")
        lists["image_class_labels.txt"].append(f"{index + 1} {number + 1}")
        lists["bounding_boxes.txt"].append(f"{index + 1} 4.0 2.0 8.0 6.0")
    for name, lines in lists.items():
        (root / name).write_text("\n".join(lines) + "\n")
    return root


def test_cub_from_its_folder(cub, tmp_path):
    store = pack("cub", cub, tmp_path / "s", size=8)
    assert splits_of(store) == {"train": 100, "val": 50, "test": 50}
    assert store.items.shape == (400, 8, 8, 3)
    for name, split in zip(store.class_names, store.class_split, strict=True):
        number = int(name[:3])
        assert split == ("train" if number % 2 == 0 else "val" if number % 4 == 1 else "test")
    first = store.part("val")
    assert first.class_names[0] == "001.Bird_1"
    assert np.array_equal(first.items[0], decode_picture(files.encoded(0, kind="JPEG"), 8, "crop"))
    assert "11788" not in store.about["notes"]
    assert "5903" in store.about["notes"][0], "a copy with other numbers of images is noted"


def test_cub_boxes(cub, tmp_path):
    store = pack("cub", cub, tmp_path / "s", size=8, box=True)
    image = Image.open(cub / "images" / "001.Bird_1" / "0.jpg").convert("RGB").crop((4, 2, 12, 8))
    whole = image.resize((int(8 * 8 / 6), 8), Image.Resampling.BILINEAR).crop((1, 0, 9, 8))
    assert np.abs(store.part("val").items[0].astype(int) - np.asarray(whole)).max() <= 1


def test_cub_boxes_can_be_squashed_as_by_the_authors_of_frn(cub, tmp_path):
    store = pack("cub", cub, tmp_path / "s", fit="squash", box=True)
    image = Image.open(cub / "images" / "001.Bird_1" / "0.jpg").convert("RGB").crop((4, 2, 12, 8))
    squashed = image.resize((92, 92), Image.Resampling.BILINEAR)
    assert np.array_equal(store.part("val").items[0], np.asarray(squashed))


def test_cub_from_its_archive(cub, tmp_path):
    with tarfile.open(tmp_path / "CUB.tgz", "w:gz") as archive:
        archive.add(cub, "CUB_200_2011")
    store = pack("cub", tmp_path / "CUB.tgz", tmp_path / "s", size=8)
    assert np.array_equal(store.items, pack("cub", cub, tmp_path / "t", size=8).items)
    assert sorted(os.listdir(tmp_path)) == ["CUB.tgz", "s", "t"]
    assert sorted(os.listdir(tmp_path / "s")) == ["items.npy", "labels.npy", "names.jsonl", "store.json"]


def test_a_benchmark_that_lacks_a_class_is_refused(cub, tmp_path):
    root = tmp_path / "cub"
    root.mkdir()
    (root / "images").symlink_to(cub / "images")
    for name in ("images.txt", "image_class_labels.txt"):
        (root / name).write_text("\n".join((cub / name).read_text().splitlines()[2:]))
    with pytest.raises(BadInput, match="49 val classes: the benchmark has 50"):
        pack("cub", root, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def mini_folders(root, nested):
    for index, (wnid, split) in enumerate(published_splits("mini").items()):
        files.write((root / split if nested else root) / wnid / f"{wnid}_1.jpg", files.encoded(index, kind="JPEG"))
    return root


@pytest.mark.parametrize("nested", [False, True])
def test_mini_from_class_folders(tmp_path, nested):
    store = pack("mini", mini_folders(tmp_path / "mini", nested), tmp_path / "s", size=8)
    assert splits_of(store) == {"train": 64, "val": 16, "test": 20}
    assert dict(zip(store.class_names, store.class_split, strict=True)) == published_splits("mini")


def test_mini_from_csv(tmp_path):
    for index, (wnid, split) in enumerate(published_splits("mini").items()):
        files.write(tmp_path / "mini" / "images" / f"{wnid}_{index}.jpg", files.encoded(index, kind="JPEG"))
        path = tmp_path / "mini" / f"{split}.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(["filename", "label"])
            writer.writerow([f"{wnid}_{index}.jpg", wnid])
    store = pack("mini", tmp_path / "mini", tmp_path / "s")
    assert splits_of(store) == {"train": 64, "val": 16, "test": 20}
    assert store.items.shape[1:] == (92, 92, 3)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("form", ["class_dict", "labels"])
def test_mini_from_pickled_caches(tmp_path, form, protocol):
    (tmp_path / "mini").mkdir()
    for split in ("train", "val", "test"):
        wnids = [wnid for wnid, of in published_splits("mini").items() if of == split]
        images = np.random.default_rng(0).integers(0, 256, (2 * len(wnids), 10, 10, 3), dtype=np.uint8)
        cache = {"image_data": images, "class_dict": {wnid: [2 * i, 2 * i + 1] for i, wnid in enumerate(wnids)}}
        name = f"mini-imagenet-cache-{split}.pkl"
        if form == "labels":
            cache = {"data": images, "labels": [i // 2 for i in range(len(images))]}
            name = f"miniImageNet_category_split_{'train_phase_train' if split == 'train' else split}.pickle"
        (tmp_path / "mini" / name).write_bytes(pickle.dumps(cache, protocol))
    store = pack("mini", tmp_path / "mini", tmp_path / "s")
    assert splits_of(store) == {"train": 64, "val": 16, "test": 20}
    assert store.items.shape == (200, 10, 10, 3)
    assert np.array_equal(np.sort(store.part("test").items.ravel()), np.sort(images.ravel()))


@pytest.mark.parametrize("arrays", [False, True])
def test_tiered_from_pickles(tmp_path, arrays):
    root = tmp_path / "tiered"
    root.mkdir()
    for split in ("train", "val", "test"):
        wnids = [wnid for wnid, of in published_splits("tiered").items() if of == split]
        images = [files.encoded(index, 84, 84) for index in range(len(wnids))]
        if arrays:  # as OpenCV wrote them
            images = [np.frombuffer(image, np.uint8)[:, None] for image in images]
        labels = {"label_specific": np.arange(len(wnids)), "label_specific_str": wnids}
        (root / f"{split}_images_png.pkl").write_bytes(pickle.dumps(images, 2))
        (root / f"{split}_labels.pkl").write_bytes(pickle.dumps(labels, 2))
    store = pack("tiered", root, tmp_path / "s")
    assert splits_of(store) == {"train": 351, "val": 97, "test": 160}
    assert dict(zip(store.class_names, store.class_split, strict=True)) == published_splits("tiered")
    val = store.part("val")
    assert np.array_equal(val.items[0], files.pixels(wnid_index("tiered", "val", val.class_names[0]), 84, 84))


def wnid_index(benchmark, split, name):
    return [wnid for wnid, of in published_splits(benchmark).items() if of == split].index(name)


def test_tiered_from_folders(tmp_path):
    for wnid, split in published_splits("tiered").items():
        files.write(tmp_path / "tiered" / split / wnid / "0.png", files.encoded(1, 84, 84))
    store = pack("tiered", tmp_path / "tiered", tmp_path / "s")
    assert splits_of(store) == {"train": 351, "val": 97, "test": 160}


@pytest.fixture
def inat(tmp_path, monkeypatch):
    monkeypatch.setitem(benchmarks.PUBLISHED, "meta-inat", {"train": (2, 192270), "val": (0, 0), "test": (1, 51716)})
    images, annotations = [], []
    for category, many in ((1, 50), (2, 51), (3, 50), (4, 49)):
        for _ in range(many):
            number = len(images)
            name = f"train_val_images/Aves/{category}/{number}.jpg"
            files.write(tmp_path / "inat" / name, files.encoded(number, kind="JPEG"))
            images.append({"id": number, "file_name": name})
            annotations += [{"id": 0, "image_id": number, "category_id": category, "bbox": [0, 0, 4, 4]}] * 2
    categories = [{"id": category, "name": f"bird {category}"} for category in range(1, 5)]
    boxes = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "inat" / "train_2017_bboxes.json").write_text(json.dumps(boxes))
    return tmp_path / "inat"


@pytest.mark.parametrize("form", ["txt", "json", "pth"])
def test_meta_inat(inat, tmp_path, form):
    path = tmp_path / f"ids.{form}"
    if form == "pth":
        import torch

        torch.save([2], path)
    else:
        path.write_text("[2]" if form == "json" else "2\n")
    store = pack("meta-inat", inat, tmp_path / "s", test_ids=path)
    assert dict(zip(store.class_names, store.class_split, strict=True)) == {
        "1 bird 1": "train",
        "3 bird 3": "train",
        "2 bird 2": "test",
    }
    assert store.items.shape == (151, 84, 84, 3)
    assert "192270" in store.about["notes"][0], "a copy with other numbers of images is noted"
    whole = Image.open(inat / "train_val_images/Aves/1/0.jpg").resize((84, 84), Image.Resampling.BILINEAR)
    assert np.array_equal(store.items[0], np.asarray(whole))


def test_benchmarks_are_packed_as_whole_frames(cub, inat, tmp_path):
    """Encoded pictures of 4:3 keep their proportions in every kind that has photos."""
    (tmp_path / "ids.txt").write_text("2")
    sources = {"cub": (cub, {}), "mini": (mini_folders(tmp_path / "mini", False), {})}
    sources["meta-inat"] = (inat, {"test_ids": tmp_path / "ids.txt"})
    for kind, (source, options) in sources.items():
        store = pack(kind, source, tmp_path / kind / "store", size=30, fit="frame", **options)
        assert isinstance(store.items, Frames), kind
        assert store.items[0].shape == decode_picture(files.encoded(0, kind="JPEG"), 30, "frame").shape, kind
        assert store.items.sides.max() > 30, kind


def test_meta_inat_needs_ids_it_knows(inat, tmp_path):
    with pytest.raises(BadInput, match="--train-ids"):
        pack("meta-inat", inat, tmp_path / "s")
    (tmp_path / "ids.txt").write_text("2 4")
    with pytest.raises(BadInput, match=r"\[4\] of the id list"):
        pack("meta-inat", inat, tmp_path / "s", test_ids=tmp_path / "ids.txt")


def test_threads_do_not_change_a_store(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abcdefghij", 4)
    one, many = (pack("folder", root, tmp_path / str(workers), size=8, workers=workers) for workers in (1, 4))
    assert np.array_equal(one.items, many.items)
    assert one.class_split == many.class_split


def test_an_interrupted_pack_goes_on_and_gives_the_same_store(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 4)
    root = files.class_folders(tmp_path / "photos", "abcdefghij", 3)
    (root / "c" / "1.png").write_bytes(b"not an image")
    reads, real = [], packing.decode_picture

    def counting(data, *rest):
        reads.append(data)
        if len(reads) == 18 and interrupt:
            raise KeyboardInterrupt
        return real(data, *rest)

    monkeypatch.setattr(packing, "decode_picture", counting)
    interrupt = True
    with pytest.raises(KeyboardInterrupt):
        pack("folder", root, tmp_path / "s", size=8, workers=1)
    assert not (tmp_path / "s").exists()
    first, *_ = sorted((tmp_path / ".s.packing").glob("chunks-*/*.npz"))
    first.write_bytes(first.read_bytes()[:-40])  # as after a power failure
    interrupt, before = False, len(reads)
    store = pack("folder", root, tmp_path / "s", size=8, workers=1)
    assert 0 < len(reads) - before < 30, "decoded again what was done"
    fresh = pack("folder", root, tmp_path / "t", size=8)
    assert np.array_equal(store.items, fresh.items)
    assert np.array_equal(store.labels, fresh.labels)
    assert store.about == fresh.about
    assert [entry["name"] for entry in store.about["skipped"]] == ["c/1.png"]
    assert not (tmp_path / ".s.packing").exists()


@pytest.mark.parametrize("kind", ["folder", "features"])
def test_a_pack_that_is_killed_while_its_doctor_looks_can_be_run_again(tmp_path, kind):
    source = files.class_folders(tmp_path / "photos", "abcdefghij", 3)
    if kind == "features":
        source = tmp_path / "x.npz"
        np.savez(source, features=np.eye(30), labels=np.repeat(np.arange(10), 3))

    def killed(store):
        diagnose_to_folder(store)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(kind, source, tmp_path / "s", examine=killed)
    assert not (tmp_path / "s").exists()
    store = pack(kind, source, tmp_path / "s", examine=diagnose_to_folder)
    assert len(store.items) == 30
    assert (tmp_path / "s" / "doctor" / "diagnosis.json").is_file()
    assert not (tmp_path / ".s.packing").exists()


def test_images_are_read_once(tmp_path, monkeypatch):
    """Also to tell whether most of them are smaller than what is stored."""
    root, reads = files.class_folders(tmp_path / "photos", "abcde", 4), []
    real = FileBytes.__call__
    monkeypatch.setattr(FileBytes, "__call__", lambda self: (reads.append(self.path), real(self))[1])
    store = pack("folder", root, tmp_path / "s", size=200, workers=1)
    assert sorted(reads) == sorted(set(reads))
    assert any("were enlarged" in note for note in store.about["notes"])


def test_a_pack_of_other_images_starts_afresh(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 2)
    root = files.class_folders(tmp_path / "photos", "abcde", 2)
    with monkeypatch.context() as patch:
        patch.setattr(packing, "finish_store", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack("folder", root, tmp_path / "s", size=8)
    assert pack("folder", root, tmp_path / "s", size=6).items.shape == (10, 6, 6, 3)


def test_what_another_archive_left_in_the_same_place_is_not_taken(tmp_path, monkeypatch):
    """Archives of the same names and sizes: what was unpacked is of the one whose checksum is written beside it."""
    for number in range(2):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as bundle:
            for place, name in enumerate("abcde"):
                bundle.writestr(f"{name}/x.bmp", files.encoded(10 * number + place, kind="BMP"))
    with monkeypatch.context() as patch:
        patch.setattr(packing, "finish_store", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack("folder", tmp_path / "0.zip", tmp_path / "s", size=8)
    assert list((tmp_path / ".s.packing").glob("unpacked-*"))
    packed = pack("folder", tmp_path / "1.zip", tmp_path / "s", size=8)
    assert np.array_equal(packed.items, pack("folder", tmp_path / "1.zip", tmp_path / "t", size=8).items)
    assert not np.array_equal(packed.items, pack("folder", tmp_path / "0.zip", tmp_path / "u", size=8).items)


def test_two_packs_to_one_place_do_not_mix(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abcde", 2)
    with locked(tmp_path / ".s.packing"):
        with pytest.raises(BadInput, match="another process is writing"):
            pack("folder", root, tmp_path / "s", size=8)
        assert (tmp_path / ".s.packing").is_dir(), "the folder of the other process was removed"
    assert pack("folder", root, tmp_path / "s", size=8).items.shape == (10, 8, 8, 3)


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_a_folder_in_an_archive(tmp_path, suffix):
    root = files.class_folders(tmp_path / "photos", "abcde", 2)
    archive = tmp_path / f"photos.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w") as bundle:
            for path in sorted(root.rglob("*.png")):
                bundle.write(path, path.relative_to(root))
    else:
        with tarfile.open(archive, "w") as bundle:
            bundle.add(root, ".")
    store = pack("folder", archive, tmp_path / "s", size=8)
    assert np.array_equal(store.items, pack("folder", root, tmp_path / "t", size=8).items)


def test_shares_of_classes():
    names = [f"class {index}" for index in range(50)]
    split = divide_classes(names, (0.6, 0.2, 0.2), 0)
    assert [list(split.values()).count(name) for name in ("train", "val", "test")] == [30, 10, 10]
    assert split == divide_classes(names[::-1], (0.6, 0.2, 0.2), 0)
    assert split != divide_classes(names, (0.6, 0.2, 0.2), 1)
    assert set(divide_classes(names, (0, 0, 1), 0).values()) == {"test"}
    assert sorted(divide_classes(names[:3], (0.98, 0.01, 0.01), 0).values()) == ["test", "train", "val"]
    for bad in ((0, 0, 0), (-1, 1, 1), (1, 1)):
        with pytest.raises(BadInput, match="three shares"):
            divide_classes(names, bad, 0)
    with pytest.raises(BadInput, match="--split 0 0 1"):
        divide_classes(names[:2], (0.6, 0.2, 0.2), 0)


def test_published_splits_are_those_of_the_paper():
    for benchmark in ("mini", "tiered"):
        counts = list(published_splits(benchmark).values())
        published = {split: classes for split, (classes, _) in benchmarks.PUBLISHED[benchmark].items()}
        assert {split: counts.count(split) for split in published} == published


def test_wrong_kinds_and_options_are_told(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abc", 1)
    with pytest.raises(BadInput, match="did you mean 'folder'"):
        pack("foldr", root, tmp_path / "s")
    with pytest.raises(BadInput, match="--box is not an option of kind 'folder'"):
        pack("folder", root, tmp_path / "s", box=True)
    with pytest.raises(BadInput, match="1 to 1024"):
        pack("folder", root, tmp_path / "s", size=0)
    with pytest.raises(BadInput, match="there is no file or folder"):
        pack("folder", tmp_path / "nowhere", tmp_path / "s")
    pack("folder", root, tmp_path / "s", size=8)
    assert open_store(tmp_path / "s", verify=True).items.shape == (3, 8, 8, 3)
    with pytest.raises(BadInput, match="exists already"):
        pack("folder", root, tmp_path / "s")
