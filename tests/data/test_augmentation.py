"""Augmentation has torchvision's documented distributions: each step against Pillow, each draw against its law."""

import random
from itertools import permutations

import numpy as np
import pytest
import torch
from helpers import pil_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anyshot.data import augmentation
from anyshot.data.augmentation import augment, prepare_evaluation
from anyshot.errors import BadInput

RECIPES = [("resized-crop", "flip", "jitter"), ("crop", "flip", "jitter"), ("flip",), ("jitter",), ()]
LEVEL = 1 / 255


def photo(height, width, seed=0, channels=3):
    """Smooth blobs over noise: has edges, flat parts and saturated colours."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)[..., :channels].copy()


def batch(*images):
    return torch.from_numpy(np.stack(images))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cut_and_resized(images, boxes, size):
    return augmentation._resize(images, *augmentation._box_taps(images, torch.tensor(boxes), size, size))


@settings(max_examples=40)
@given(st.data())
def test_crop_and_resize_are_pillows(data):
    height, width = data.draw(st.integers(8, 120)), data.draw(st.integers(8, 120))
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    box = (data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w)
    size = data.draw(st.sampled_from([16, 32, 84]))
    image = photo(height, width)
    ours = cut_and_resized(batch(image), [box], size)[0] / 255
    theirs = np.asarray(pil_loader.resized_crop(Image.fromarray(image), box, size)) / 255
    assert np.abs(ours.permute(1, 2, 0).numpy() - theirs).max() <= 1.1 * LEVEL  # Pillow rounds twice, once a side


def test_the_box_of_each_image_is_its_own():
    images, box = (
        [photo(30, 40, seed) for seed in range(4)],
        [(seed, 2 * seed, 9 + seed, 20 - seed) for seed in range(4)],
    )
    together = cut_and_resized(batch(*images), box, 24)
    for index, image in enumerate(images):
        assert torch.allclose(together[index], cut_and_resized(batch(image), [box[index]], 24)[0])


def test_a_crop_is_a_slice_of_its_padded_image():
    images = batch(*(photo(32, 32, seed) for seed in range(5)))
    padded = torch.nn.functional.pad(images, (0, 0, 3, 3, 3, 3))
    boxes = augmentation._draw_boxes(padded.shape, 32, ("crop",), seeded())
    out = augment(images, ("crop",), seeded(), 32)
    for ours, image, (top, left, *_) in zip(out, padded, boxes.tolist(), strict=True):
        assert torch.equal(ours, prepare_evaluation(image[None, top : top + 32, left : left + 32], 32)[0])


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_jitter_in_every_order_is_pillows(order):
    ours = (augmentation._brightness, augmentation._contrast, augmentation._saturation)
    rng = random.Random(sum(order))
    for seed in range(5):
        image, factors = photo(40, 40, seed), [rng.uniform(0.6, 1.4) for _ in range(3)]
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
        for index, factor in zip(order, factors, strict=True):
            ours[index](pixels, torch.full((1, 1, 1, 1), factor))
        theirs = pil_loader.jitter(Image.fromarray(image), [pil_loader.ENHANCERS[index] for index in order], factors)
        gap = np.abs(pixels[0].permute(1, 2, 0).numpy() - np.asarray(theirs) / 255)
        assert gap.max() <= 4 * LEVEL  # Pillow truncates to whole levels after each of the three steps


def same_law(ours, theirs):
    """Two-sample Kolmogorov-Smirnov: the gap that only one pair in a million exceeds."""
    both = np.concatenate([ours, theirs])
    gap = np.abs(
        np.searchsorted(np.sort(ours), both, "right") / len(ours)
        - np.searchsorted(np.sort(theirs), both, "right") / len(theirs)
    ).max()
    return gap < np.sqrt(np.log(2e6) / 2 * (1 / len(ours) + 1 / len(theirs)))


@pytest.mark.parametrize("shape", [(92, 92), (60, 100), (20, 200)])
def test_resized_crop_boxes_follow_the_documented_law(shape):
    ours = augmentation._draw_boxes((20_000, *shape, 3), 84, ("resized-crop",), seeded()).double().numpy()
    rng = random.Random(1)
    theirs = np.array([pil_loader.resized_crop_box(*shape, rng) for _ in range(20_000)])
    for statistic in (lambda b: b[:, 0], lambda b: b[:, 1], lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 2] / b[:, 3]):
        assert same_law(statistic(ours), statistic(theirs))


def test_corners_are_uniform_over_every_place_and_only_those():
    corners = augmentation._draw_boxes((30_000, 12, 10, 3), 8, ("crop",), seeded()).numpy()
    counts = np.bincount(corners[:, 0] * 3 + corners[:, 1], minlength=15)
    assert len(counts) == 15
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_jitter_factors_and_orders_are_uniform():
    factors, orders = augmentation._draw_jitter(20_000, seeded())
    assert same_law(factors.flatten().numpy(), np.random.default_rng(0).uniform(0.6, 1.4, 60_000))
    assert np.abs(torch.bincount(orders).numpy() - 20_000 / 6).max() < 5 * np.sqrt(20_000 / 6)


@pytest.mark.parametrize("names", RECIPES[:2], ids="+".join)
def test_the_whole_path_has_the_distribution_of_pillow_one_image_at_a_time(names):
    image, many = photo(28, 28, 3), 1500
    ours = augment(batch(image).expand(many, -1, -1, -1), names, seeded(5), 28).numpy()
    theirs = pil_loader.augmented_batch([image] * many, names, 28, 6)
    for moment in (lambda x: x, np.square):
        a, b = moment(ours), moment(theirs)
        error = np.sqrt((a.var(0) + b.var(0)) / many)
        allowed = 5.5 * error + 2 * LEVEL / 0.224 * np.abs(b).max()
        assert (np.abs(a.mean(0) - b.mean(0)) < allowed).all()
    for value in ([0, 0, 0], [1, 14, 14], [2, 27, 5]):
        assert same_law(np.round(ours[:, *value], 1), np.round(theirs[:, *value], 1))


def test_half_of_the_images_are_flipped():
    image = np.zeros((16, 16, 1), np.uint8)
    image[:, 8:] = 255
    flipped = augment(batch(image).expand(4000, -1, -1, -1), ("flip",), seeded(), 16)[:, 0, 0, 0] > 0
    assert abs(flipped.float().mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("names", RECIPES, ids="+".join)
def test_one_seed_one_result_and_the_images_stay(names):
    images = batch(*(photo(36, 36, seed) for seed in range(10)))
    before, state = images.clone(), torch.get_rng_state()
    first, again, other = (augment(images, names, seeded(seed), 32) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (not names)
    assert torch.equal(images, before)
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    assert first.is_contiguous()
    assert first.dtype == torch.float32


def test_images_of_a_batch_differ():
    out = augment(batch(photo(92, 92)).expand(64, -1, -1, -1), RECIPES[0], seeded(), 84)
    assert len({image.sum().item() for image in out}) == 64


def test_without_names_augment_is_prepare():
    images = batch(photo(92, 92), photo(92, 92, 1))
    assert torch.equal(augment(images, (), seeded(), 84), prepare_evaluation(images, 84))


@pytest.mark.parametrize(("height", "width"), [(92, 92), (84, 84), (184, 184), (128, 150), (93, 92), (60, 60)])
def test_evaluation_is_shorter_side_92_then_the_central_84(height, width):
    image = Image.fromarray(photo(height, width))
    shorter = min(height, width)
    target = 84 if shorter <= 84 else 92
    resized = image.resize((width * target // shorter, height * target // shorter), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 84) / 2), round((resized.height - 84) / 2)
    theirs = pil_loader.normalised(resized.crop((left, top, left + 84, top + 84)))
    gap = np.abs(prepare_evaluation(batch(np.asarray(image)), 84)[0].numpy() - theirs).max()
    assert gap <= (1e-5 if shorter == target else 1.1 * LEVEL / 0.224)


@pytest.mark.parametrize("names", RECIPES, ids="+".join)
def test_grey_images_take_every_augmentation(names):
    out = augment(batch(photo(28, 28, channels=1)), names, seeded(), 28)
    assert out.shape == (1, 1, 28, 28)
    assert out.min() >= -1
    assert out.max() <= 1


def test_one_image_batch_and_empty_batch():
    assert augment(batch(photo(92, 92)), RECIPES[0], seeded(), 84).shape == (1, 3, 84, 84)
    assert augment(batch(photo(92, 92))[:0], RECIPES[0], seeded(), 84).shape == (0, 3, 84, 84)


def test_wrong_names_and_channels_are_told():
    images = batch(photo(32, 32))
    with pytest.raises(BadInput, match="did you mean 'jitter'"):
        augment(images, ("jiter",), seeded(), 32)
    with pytest.raises(BadInput, match="not by both"):
        augment(images, ("crop", "resized-crop"), seeded(), 32)
    with pytest.raises(BadInput, match="2 channels"):
        prepare_evaluation(images[..., :2], 32)
