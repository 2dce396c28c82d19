"""The slow obvious way: one Pillow image at a time, by torchvision's documentation; for tests and benchmarks."""

import math
import random

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def resized_crop_box(height, width, rng):
    """RandomResizedCrop's draw of top, left, height, width: ten tries, then the central box of a valid ratio."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    if width / height < 3 / 4:
        h, w = round(width / (3 / 4)), width
    elif width / height > 4 / 3:
        h, w = height, round(height * 4 / 3)
    else:
        h, w = height, width
    return (height - h) // 2, (width - w) // 2, h, w


def resized_crop(image, box, size):
    top, left, h, w = box
    return image.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)


def padded_crop(image, padding, size, rng):
    image = ImageOps.expand(image, padding)
    top, left = rng.randint(0, image.height - size), rng.randint(0, image.width - size)
    return image.crop((left, top, left + size, top + size))


ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def jitter(image, order, factors):
    for enhancer, factor in zip(order, factors, strict=True):
        image = enhancer(image).enhance(factor)
    return image


def normalised(image):
    return ((np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)


def augmented(array, names, size, rng):
    """One uint8 image "height width channel" to one normalised float image "channel height width"."""
    image = Image.fromarray(array)
    if "resized-crop" in names:
        image = resized_crop(image, resized_crop_box(image.height, image.width, rng), size)
    if "crop" in names:
        image = padded_crop(image, round(size * 8 / 84), size, rng)
    if "flip" in names and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if "jitter" in names:
        image = jitter(image, rng.sample(ENHANCERS, 3), [rng.uniform(0.6, 1.4) for _ in range(3)])
    return np.ascontiguousarray(normalised(image))


def augmented_batch(arrays, names, size, seed):
    rng = random.Random(seed)
    return np.stack([augmented(array, names, size, rng) for array in arrays])
