"""Copies of pictures are told from other pictures, and when a photo was taken."""

import io

import numpy as np
import pytest
from helpers.networks import photo
from PIL import Image, ImageEnhance

from anyshot.data.pictures import FileBytes, capture_time
from anyshot.inspect.alignment import COPY_SIMILARITY, PictureSketch, compare_pictures
from anyshot.inspect.copies import find_copies

CHANGES = {
    "itself": lambda image: image,
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "on its side": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned": lambda image: image.rotate(8, Image.Resampling.BICUBIC),
    "cropped": lambda image: image.crop((10, 16, 146, 152)),
    "shifted": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 14, 0, 1, -10)),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "smaller": lambda image: image.resize((90, 90)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_are_told(change):
    for seed in range(3):
        original = photo(seed)
        file = io.BytesIO()
        CHANGES[change](original).save(file, "JPEG", quality=85)
        one, other = (PictureSketch.from_image(np.asarray(image)) for image in (original, Image.open(file)))
        assert compare_pictures(one, other) >= COPY_SIMILARITY


def test_other_pictures_are_no_copies():
    sketches = [PictureSketch.from_image(np.asarray(photo(seed))) for seed in range(6)]
    assert max(compare_pictures(a, b) for i, a in enumerate(sketches) for b in sketches[:i]) < COPY_SIMILARITY
    flat = PictureSketch.from_image(np.full((50, 40, 1), 200, np.uint8))
    assert compare_pictures(flat, flat) == 0
    assert compare_pictures(flat, sketches[0]) == 0


def test_two_photos_of_one_thing_are_no_copies():
    """One can be laid upon the other, and then their details differ."""
    one, other = (PictureSketch.from_image(np.asarray(photo(1, details))) for details in (10, 11))
    assert 0 < compare_pictures(one, other) < COPY_SIMILARITY


def test_pictures_decide_where_features_only_suggest():
    """Two pairs are near in features; only one of them is a copy."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 32))
    vectors[6:8] = vectors[:2] + 0.3 * rng.normal(size=(2, 32))
    images = [photo(seed) for seed in range(12)]
    images[6] = CHANGES["mirrored"](images[0])
    pairs = find_copies(vectors, np.arange(12) % 3, lambda image: np.asarray(images[image]))
    assert [pair[:2] for pair in pairs] == [(0, 6)]


def test_when_a_photo_was_taken(tmp_path):
    exif = Image.Exif()
    exif[0x8769] = {0x9003: "2024:01:31 12:05:01"}
    for name, words in (("a.jpg", exif), ("b.jpg", Image.Exif())):
        photo(0).save(tmp_path / name, exif=words)
    exif[0x8769] = {0x9003: "2024:01:31 12:05:11"}
    photo(0).save(tmp_path / "c.jpg", exif=exif)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    first, never, later, broken = (
        capture_time(FileBytes(tmp_path / f"{name}.jpg")) for name in ("a", "b", "c", "broken")
    )
    assert later - first == 10
    assert never is None
    assert broken is None
    assert capture_time((tmp_path / "a.jpg").read_bytes) == first
    assert capture_time(lambda: np.zeros((4, 4, 3), np.uint8)) is None
