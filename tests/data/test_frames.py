"""Whole frames: packed, read, cropped and tested as a slow and plain implementation would."""

import json
import math

import numpy as np
import pytest
import torch
from helpers import image_files as files
from helpers import pil_loader
from helpers.own_study import recipe
from helpers.training import assert_same, train_until
from PIL import Image

from anyshot.data import augmentation
from anyshot.data import pack as packing
from anyshot.data.pack import pack
from anyshot.data.pictures import decode_picture, evaluation_square
from anyshot.data.store import Frames, frames_from_flat, open_store
from anyshot.errors import BadInput
from anyshot.inspect.doctor import diagnose_to_folder
from anyshot.measure.evaluate import evaluate_store
from anyshot.models.embedders import load_embedder
from anyshot.models.model import Model
from anyshot.train.training import train

SHAPES = [(40, 60), (60, 40), (40, 40), (50, 90), (40, 240)]
SIDE = 40


def photo(number):
    return files.pixels(number, *SHAPES[number % len(SHAPES)])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for number in range(90):
        place = root / f"class{number // 5:02}" / f"{number:02}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(photo(number)).save(place)
    return root


@pytest.fixture(scope="module")
def store(source, tmp_path_factory):
    return pack("folder", source, tmp_path_factory.mktemp("data") / "birds", SIDE, "frame", split=(6, 6, 6))


def originals(store):
    """The photos of a store in its order."""
    return [photo(int(name.rpartition("/")[2].removesuffix(".png"))) for name in store.names]


def test_frames_keep_the_whole_photo_and_its_aspect_ratio(store):
    assert isinstance(store.items, Frames)
    assert not store.is_features
    for frame, whole in zip(store.items, originals(store), strict=True):
        height, width = whole.shape[:2]
        if height == width * 6 or width == height * 6:  # wider than 4:1: the middle
            assert np.array_equal(frame, whole[:, 40:200])
        elif min(height, width) == SIDE:
            assert np.array_equal(frame, whole)
        else:
            assert np.array_equal(frame, Image.fromarray(whole).resize((72, 40), Image.Resampling.BILINEAR))


def test_frames_are_an_array_of_their_central_squares(store):
    squares = np.asarray(store.items)
    assert squares.shape == store.items.shape == (90, SIDE, SIDE, 3)
    assert squares.ndim == store.items.ndim
    assert squares.dtype == store.items.dtype
    for square, frame in zip(squares, store.items, strict=True):
        top, left = ((side - SIDE) // 2 for side in frame.shape[:2])
        assert np.array_equal(square, frame[top : top + SIDE, left : left + SIDE])
    some = store.items[np.array([7, 3, 3])]
    assert [frame.tobytes() for frame in some] == [store.items[place].tobytes() for place in (7, 3, 3)]
    part = store.part("val")
    assert np.array_equal(part.items[0], store.items[len(store.part("train").items)])


def test_a_damaged_store_of_frames_is_told(source, tmp_path):
    path = pack("folder", source, tmp_path / "s", SIDE, "frame").path
    assert set(json.loads((path / "store.json").read_text())["sha256"]) >= {"items.npy", "sides.npy"}
    open_store(path, verify=True)
    sides = np.load(path / "sides.npy")
    for change in (sides + 1, sides[:-1], sides.astype(np.float32), sides[:, :1], -sides):
        np.save(path / "sides.npy", change)
        with pytest.raises(BadInput, match="is damaged"):
            open_store(path)
    np.save(path / "sides.npy", sides[:, ::-1])
    with pytest.raises(BadInput, match=r"sides\.npy does not match"):
        open_store(path, verify=True)
    (path / "sides.npy").unlink()
    with pytest.raises(BadInput, match="is damaged"):
        open_store(path)


def test_an_interrupted_pack_of_frames_goes_on(source, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 4)
    real, reads = packing.decode_picture, []

    def dying(data, *rest):
        reads.append(data)
        if len(reads) == 30:
            raise KeyboardInterrupt
        return real(data, *rest)

    monkeypatch.setattr(packing, "decode_picture", dying)
    with pytest.raises(KeyboardInterrupt):
        pack("folder", source, tmp_path / "s", SIDE, "frame", workers=1)
    store = pack("folder", source, tmp_path / "s", SIDE, "frame", workers=1)
    assert len(reads) < 30 + 90, "decoded again what was done"
    fresh = pack("folder", source, tmp_path / "t", SIDE, "frame")
    assert np.array_equal(store.items.sides, fresh.items.sides)
    assert np.array_equal(store.items.pixels, fresh.items.pixels)


def test_the_default_side_enlarges_no_crop_of_a_photo(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abcde", 2)
    assert pack("folder", root, tmp_path / "s", fit="frame").items.shape[1:] == (256, 256, 3)
    assert round((0.08 * 256 * 256 * 4 / 3) ** 0.5) == 84


def box_of_draws(tries, height, width):
    """RandomResizedCrop's box (top, left, height, width) of one image, by the numbers from 0 to 1 that were drawn."""
    for area, ratio, top, left in tries:
        area = height * width * (0.08 + 0.92 * area)
        ratio = math.exp(math.log(3 / 4) + ratio * math.log(16 / 9))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crops_are_drawn_from_the_whole_frame(channels):
    images = [photo(number)[..., :channels] for number in range(40) if number % 5 != 3]
    frames = frames_from_flat(
        np.concatenate([image.ravel() for image in images]), np.array([image.shape[:2] for image in images])
    )
    generator, again = (torch.Generator().manual_seed(5) for _ in range(2))
    cuts, boxes = augmentation.cut_frames(frames, ("resized-crop",), generator)
    ours = augmentation.augment(torch.from_numpy(cuts), ("resized-crop",), generator, 24, boxes=boxes)
    mean, deviation = (torch.tensor(moment).view(-1, 1, 1) for moment in augmentation.MOMENTS[channels])
    draws = torch.rand(4, len(images), augmentation.TRIES, generator=again, dtype=torch.float64)
    for number, (image, pixels) in enumerate(zip(images, ours, strict=True)):
        box = box_of_draws(draws[:, number].T.tolist(), *image.shape[:2])
        theirs = pil_loader.resized_crop(Image.fromarray(image.squeeze()), box, 24)
        theirs = np.asarray(theirs).reshape(24, 24, channels)
        gap = ((pixels * deviation + mean) * 255).permute(1, 2, 0).numpy() - theirs
        assert np.abs(gap).max() <= 1.1, (number, box)  # Pillow rounds twice


def test_training_on_frames_with_the_fused_block_is_the_same_after_every_interruption(store, tmp_path, monkeypatch):
    how = {"augment": ("resized-crop", "flip", "jitter"), "size": 32, "fused": True, "epochs": 6}
    model = recipe("cosine-proto", way=4, train_shot=2, validation_queries=2, **how)
    train(model, store, tmp_path / "undisturbed")
    for updates in (1, 3):
        train_until(updates, monkeypatch, model, store, tmp_path / "killed")
    train(model, store, tmp_path / "killed")
    assert_same(tmp_path / "undisturbed", tmp_path / "killed")


def test_evaluation_is_resize_and_centre_crop(store, source):
    for frame in store.items:
        square = evaluation_square(frame, 24, 28 / 24)
        height, width = (int(28 * side / SIDE) for side in frame.shape[:2])
        resized = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR)).astype(int)
        top, left = round((height - 24) / 2), round((width - 24) / 2)
        assert np.abs(resized[top : top + 24, left : left + 24] - square).max() <= 1
    # Where packing did not resize, it is what a store of squares gives to the last bit.
    for frame, whole in zip(store.items, originals(store), strict=True):
        if np.array_equal(frame, whole):
            assert np.array_equal(evaluation_square(frame, 24, 28 / 24), decode_picture(whole, 28, "crop")[2:26, 2:26])


def test_a_model_sees_the_same_in_every_verb(store):
    model = Model(recipe("proto", way=4, train_shot=2, size=24), 3).eval()
    squares = np.stack([evaluation_square(frame, 24, model.kind.margin) for frame in store.items])
    features = model.features(store.items)
    assert np.array_equal(features, model.features(squares))
    assert np.array_equal(load_embedder(model).features(store.items), features)
    grey = Model(recipe("proto", way=4, train_shot=2, size=24), 1).eval()
    assert grey.features(store.items).shape == features.shape


def test_the_doctor_and_other_networks_read_frames(store, tmp_path):
    assert "6 classes, 30 items" in diagnose_to_folder(store, tmp_path).text
    assert {path.name for path in tmp_path.iterdir()} >= {"train.png", "val.png", "test.png", "diagnosis.json"}
    means = load_embedder(lambda pictures: pictures.mean((1, 2)).astype(np.float32), side=24)
    assert means.features(store.items).shape == (90, 3)
    tested = evaluate_store(store, model=means, heads=("proto",), way=3, shots=(1, 2), queries=2, episodes=20)
    assert tested is not None
