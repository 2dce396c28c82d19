"""The doctor finds what was put wrong, and nothing in what is right."""

import io

import numpy as np
import pytest
from helpers import image_files as files
from helpers.networks import photo
from helpers.shell import run
from PIL import Image

from anyshot.data.pictures import to_picture
from anyshot.data.store import write_store
from anyshot.inspect import doctor
from anyshot.inspect.doctor import GAP, TILE, diagnose, diagnose_to_folder


def images(many, side=32):
    return np.stack([files.pixels(seed, side, side) for seed in range(many)])


def stored(path, items, names=tuple("abcdefgh"), splits=("train",) * 4 + ("val",) * 2 + ("test",) * 2, **about):
    labels = np.sort(np.arange(len(items)) % len(names))
    return write_store(path, [items], labels, list(names), list(splits), **about)


def findings(diagnosis):
    return [finding.text for finding in diagnosis.findings if "5-way" not in finding.text]


def test_nothing_is_found_in_a_sound_store(tmp_path):
    diagnosis = diagnose(stored(tmp_path / "s", images(160)))
    assert findings(diagnosis) == []
    assert diagnosis.splits["train"] == {
        "classes": 4,
        "items": 80,
        "smallest": 20,
        "largest": 20,
        "largest_shot": 4,
    }
    assert "80 items, 20 per class; largest shot with 16 queries: 4" in diagnosis.text
    assert "20 to 21 per class" in diagnose(stored(tmp_path / "t", images(161))).text


def jpeg(image, quality):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(io.BytesIO(file.getvalue())))


def test_duplicates_exact_and_near_within_and_across(tmp_path):
    items = images(160)
    items[1], items[30], items[110] = items[0], items[0], items[0]  # within a class, across classes, across splits
    items[21] = jpeg(items[20], 90)
    items[130] = np.clip(items[40].astype(int) + 3, 0, 255)
    store = stored(tmp_path / "s", items)
    findings = {
        (f.text.split(" pair of ")[1].split(":")[0]): f.items for f in diagnose(store).findings if "pair" in f.text
    }
    assert findings == {
        "exact duplicates within a class": [[0, 1]],
        "exact duplicates across classes": [[0, 30]],
        "exact duplicates across splits": [[0, 110]],
        "near duplicates within a class": [[20, 21]],
        "near duplicates across splits": [[40, 130]],
    }


def test_pictures_that_are_there_twice_are_drawn_side_by_side(tmp_path):
    items = images(160)
    diagnose_to_folder(stored(tmp_path / "sound", items), tmp_path / "sound sheets")
    assert not (tmp_path / "sound sheets" / "pairs.png").exists()
    items[30] = items[0]
    diagnose_to_folder(stored(tmp_path / "s", items), tmp_path / "sheets")
    with Image.open(tmp_path / "sheets" / "pairs.png") as sheet:
        left, right = (np.asarray(sheet)[24 : 24 + TILE, place : place + TILE] for place in (0, TILE + GAP))
    np.testing.assert_array_equal(left, right)
    assert left.std() > 10


def test_copies_that_no_hash_tells_are_found_where_they_are_asked_for(tmp_path, monkeypatch):
    items = np.stack([np.asarray(photo(seed)) for seed in range(8)])
    items[5] = items[0][:, ::-1]
    store = stored(tmp_path / "s", items, tuple("abcd"), ("train",) * 4)
    monkeypatch.setenv("ANYSHOT_CACHE", str(tmp_path / "cache"))
    assert "near duplicates" not in run(f"anyshot doctor {store.path}", monkeypatch).out
    out = run(f"anyshot doctor {store.path} --copies", monkeypatch).out
    assert "1 pair of near duplicates across classes" in out
    assert (store.path / "doctor" / "pairs.png").is_file()


def test_constant_images_shared_classes_small_classes_and_skipped_files(tmp_path):
    items = images(80)
    items[3], items[50] = 0, 255
    skipped = [{"name": f"{index}.jpg", "why": "OSError: cut"} for index in range(5)]
    names = ("a", "b", "c", "d", "a", "f", "b", "h")
    store = stored(tmp_path / "s", items, names, skipped=skipped, notes=["hello"])
    text = diagnose(store).text
    assert "2 items are constant, one value all over: item 3 (a), item 50 (f)" in text
    assert "1 classes are in both train and val, so val is not unseen: a" in text
    assert "1 classes are in both train and test, so test is not unseen: b" in text
    assert "4 train classes have no shot left beside 16 queries" in text
    assert "5 files could not be read and are left out: 0.jpg (OSError: cut)" in text
    assert "2 more" in text
    assert "note: hello" in text


def test_features_have_a_doctor_too(tmp_path):
    items = np.random.default_rng(0).normal(size=(160, 1, 6)).astype(np.float32)
    items[5] = items[100]
    items[9] = 0
    store = stored(tmp_path / "s", items)
    text = diagnose_to_folder(store).text
    assert "1 items are constant" in text
    assert "1 pair of exact duplicates across splits" in text
    assert sorted(path.name for path in (tmp_path / "s" / "doctor").iterdir()) == ["diagnosis.json"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_contact_sheet_shows_every_class_of_a_small_split(tmp_path, channels):
    diagnose_to_folder(stored(tmp_path / "s", images(160)[..., :channels]))
    with Image.open(tmp_path / "s" / "doctor" / "train.png") as sheet:
        pixels = np.asarray(sheet)
    assert len(list((tmp_path / "s" / "doctor").glob("*.png"))) == 3
    row = pixels[24 : 24 + 64, 150:]
    assert row.std() > 20
    tiles = [row[:, index * 66 : index * 66 + 64] for index in range(12)]
    assert len({tile.tobytes() for tile in tiles}) == 12


def test_bands_miss_no_pair_that_every_pair_compared_would_find(tmp_path):
    rng = np.random.default_rng(0)
    base = images(40)
    noisy = [
        np.clip(base.astype(int) + rng.integers(-w, w + 1, base.shape), 0, 255).astype(np.uint8) for w in (4, 12, 30)
    ]
    items = np.concatenate([base, *noisy])
    thumbnails = np.stack([np.asarray(to_picture(item).resize((9, 8), Image.Resampling.BOX)) for item in items])
    hashes = doctor.hash_thumbnails(thumbnails)
    every = np.array([(a, b) for a in range(len(items)) for b in range(a + 1, len(items))])
    close = np.bitwise_count(hashes[every[:, 0]] ^ hashes[every[:, 1]]) <= doctor.MAX_BITS
    slow = doctor.confirm_pairs(every[close], thumbnails)
    assert doctor.find_near_duplicates(thumbnails) == slow
    assert len(slow) > 40


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (7, 3), (40, 33)])
def test_images_of_any_size_are_looked_at(tmp_path, shape, channels):
    some = np.random.default_rng(0).integers(0, 256, (40, *shape, channels), dtype=np.uint8)
    assert len(diagnose(stored(tmp_path / "s", some)).splits) == 3
