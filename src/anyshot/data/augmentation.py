"""Turn batches of images into network input, on the device that they are on (the paper's Section 5, "Images").

`augment` is for training, `prepare_evaluation` for evaluation; both return normalised floats. Every augmentation has
the distribution that torchvision documents for its namesake, drawn per image from the generator that is passed:

    resized-crop   RandomResizedCrop(size, scale=(0.08, 1), ratio=(3/4, 4/3)), bilinear and antialiased
    crop           RandomCrop(size, padding=8) at size 84; at other sizes the padding is the same share of the side
    flip           RandomHorizontalFlip(0.5)
    jitter         ColorJitter(0.4, 0.4, 0.4): brightness, contrast and saturation in a random order, a clamp after each

What differs from torchvision on PIL images is that nothing is rounded to whole grey levels on the way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import embedding_bag

from anyshot.data.store import Frames
from anyshot.errors import BadInput, check_names

Images = UInt8[Tensor, "image height width channel"]
Resized = UInt8[Tensor, "image new_height new_width channel"]
Pixels = Float[Tensor, "image channel side side"]  # from 0 to 1 until they are normalised
Moments = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel

NAMES = ("resized-crop", "crop", "flip", "jitter")
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # share of the area, width over height, draws: torchvision's
CACHE = 1 << 21  # bytes of the images that are augmented together: few enough to stay in a cache of a CPU core
JITTER = 0.4  # brightness, contrast and saturation change by a factor from 0.6 to 1.4, as in the authors' programs
PADDING = 8 / 84  # of the side, on each side of an image that is cropped: 8 pixels of 84 in the authors' programs
MARGIN = 92 / 84  # evaluation resizes the shorter side to 92 and cuts the central 84 (the paper's Section 5)
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in luma (ITU-R BT.601), as in Pillow
MOMENTS: dict[int, Moments] = {1: ((0.5,), (0.5,)), 3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}  # 3: of ImageNet


Taps = tuple[Int[Tensor, "image _ _"], Float[Tensor, "image _ _"]]
"""How one side is resized: which lines of an image make each new line, and with what weights (image, new line, tap)."""


def augment(
    images: Images,
    names: Collection[str],
    generator: torch.Generator,
    size: int,
    margin: float = MARGIN,
    moments: Mapping[int, Moments] = MOMENTS,
    boxes: Int[Tensor, "image 4"] | None = None,
) -> Pixels:
    """Return training input: augmented, of side `size`, normalised by the moments of its channels.

    All random numbers are drawn on the generator's device, so that one seed gives one result on every device.

    Args:
        images: The images.
        names: The augmentations, any of NAMES. Without a crop, images are cut as by `prepare_evaluation`.
        generator: Draws the random numbers.
        size: Side of the result, in pixels.
        margin: As in `prepare_evaluation`.
        moments: Mean and standard deviation of each channel, by the number of channels.
        boxes: The resized crops, where `cut_frames` has drawn them before: top, left, height and width.
    """
    check_names("augmentation", names, NAMES)
    if "crop" in names and "resized-crop" in names:
        raise BadInput("augment by 'crop' or by 'resized-crop', not by both.")
    _check_channels(images)
    if "resized-crop" not in names:
        images = _evaluation_resize(images, size, margin)
        if "crop" in names:
            images = torch.nn.functional.pad(images, (0, 0, *[round(size * PADDING)] * 4))
    boxes = _draw_boxes(images.shape, size, names, generator) if boxes is None else boxes
    boxes = boxes.to(images.device)
    taps = _box_taps(images, boxes, size, size) if "resized-crop" in names else ()
    coins = torch.rand(len(images), generator=generator, device=generator.device)
    flips = (coins < 0.5 * ("flip" in names)).to(images.device)
    factors, orders = (draw.to(images.device) for draw in _draw_jitter(len(images), generator))
    batch = torch.empty(len(images), images.shape[3], size, size, device=images.device)
    # On a CPU, groups of images fit its cache. On a GPU, one large group saves launches of operations.
    group_size = max(1, CACHE // (4 * images.shape[3] * size**2)) if images.device.type == "cpu" else len(images)
    for order, group in _groups(orders, flips, group_size):
        if "resized-crop" in names:
            tall, wide = (boxes[group, :2] + boxes[group, 2:]).amax(0).tolist()
            group_taps = ((lines[group], weights[group]) for lines, weights in taps)
            pixels = _resize(images[:, :tall, :wide].index_select(0, group), *group_taps).mul_(1 / 255)
        else:
            corners = zip(group.tolist(), *boxes[group, :2].T.tolist(), strict=True)
            cuts = [images[image, top : top + size, left : left + size] for image, top, left in corners]
            pixels = _to_pixels(torch.stack(cuts))
        pixels[flips[group]] = pixels[flips[group]].flip(3)
        if "jitter" in names:
            for adjust, factor in zip(ORDERS[order], factors[group].unbind(1), strict=True):
                adjust(pixels, factor.view(-1, 1, 1, 1))
        batch.index_copy_(0, group, _normalise(pixels, moments))
    return batch


def cut_frames(
    frames: Frames, names: Collection[str], generator: torch.Generator
) -> tuple[UInt8[np.ndarray, "image height width channel"], Int[Tensor, "image 4"] | None]:
    """Return the `images` and `boxes` that `augment` takes, of whole images of different sizes.

    A resized crop is drawn from the whole image, by its height and width; other augmentations work on its central
    square, and need no boxes.
    """
    if "resized-crop" not in names:
        return np.asarray(frames), None
    sides = torch.from_numpy(frames.sides)
    boxes = _resized_crop_boxes(sides[:, :1], sides[:, 1:], generator)
    cuts = frames.cut(boxes.cpu().numpy())
    boxes[:, :2] = 0  # each box begins at the corner of what was cut
    return cuts, boxes


def prepare_evaluation(
    images: Images, size: int, margin: float = MARGIN, moments: Mapping[int, Moments] = MOMENTS
) -> Pixels:
    """Return the evaluation input of side `size`, normalised by the moments of the channels.

    Larger images are resized to `margin` times that side and cut to the centre.
    """
    _check_channels(images)
    images = _evaluation_resize(images, size, margin)
    top, left = (round((side - size) / 2) for side in images.shape[1:3])
    return _normalise(_to_pixels(images[:, top : top + size, left : left + size]), moments)


def _groups(
    orders: Int[Tensor, " image"], flips: Bool[Tensor, " image"], size: int
) -> Iterator[tuple[int, Int[Tensor, " group"]]]:
    """Yield each order of the jitter with up to `size` images that share it, those that are flipped last.

    How images follow each other must stay: the last bits of a result depend on its neighbours.
    """
    ordered = (2 * orders + flips).argsort()
    for order in orders.unique().tolist():
        yield from ((order, group) for group in ordered[orders[ordered] == order].split(size))


def convert_channels(
    images: UInt8[np.ndarray, "image height width colour"], channels: int
) -> UInt8[np.ndarray, "image height width channel"]:
    """Return colour images in grey, or grey ones in colour, where a model has the other number of channels."""
    present = images.shape[3]
    if (present, channels) == (3, 1):
        return np.round(images @ np.array(GREY))[..., None].astype(np.uint8)
    return images.repeat(3, 3) if (present, channels) == (1, 3) else images


def _check_channels(images: Images) -> None:
    if images.shape[3] not in MOMENTS:
        raise BadInput(f"images have {images.shape[3]} channels: 1 (grey) or 3 (red, green, blue) were expected.")


def _to_pixels(images: UInt8[Tensor, "image side side channel"]) -> Pixels:
    return images.permute(0, 3, 1, 2).contiguous().float().mul_(1 / 255)


def _normalise(pixels: Pixels, moments: Mapping[int, Moments]) -> Pixels:
    mean, deviation = (pixels.new_tensor(moment).view(-1, 1, 1) for moment in moments[pixels.shape[1]])
    return pixels.sub_(mean).div_(deviation)


def _evaluation_resize(images: Images, size: int, margin: float) -> Resized:
    """Resize images to a shorter side of `size`, or of `margin` times that if they are larger."""
    many, height, width, _ = images.shape
    shorter = min(height, width)
    target = size if shorter <= size else round(size * margin)
    if shorter == target:
        return images
    boxes = torch.tensor([[0, 0, height, width]], device=images.device).expand(many, 4)
    taps = _box_taps(images, boxes, height * target // shorter, width * target // shorter)
    pixels = _resize(images, *taps)
    return pixels.round_().to(torch.uint8).permute(0, 2, 3, 1)


def _box_taps(images: Images, boxes: Int[Tensor, "image 4"], new_height: int, new_width: int) -> tuple[Taps, Taps]:
    top, left, height, width = boxes.unbind(1)
    return _taps(top, height, images.shape[1], new_height), _taps(left, width, images.shape[2], new_width)


def _taps(start: Int[Tensor, " image"], length: Int[Tensor, " image"], old: int, new: int) -> Taps:
    """Return the lines and weights that resize [start, start + length) of a side of `old` pixels to `new` pixels.

    This is the triangle filter of Pillow's antialiased BILINEAR: as wide as a source pixel when enlarging, as wide as a
    target pixel when reducing, renormalised at both ends.
    """
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    scale = length / new
    reach = scale.clamp(min=1)
    centre = start + (torch.arange(new, device=start.device).view(-1, 1) + 0.5) * scale
    source = (centre - reach - 0.5).ceil().long() + torch.arange(int(2 * max(old / new, 1)) + 1, device=start.device)
    weights = (1 - (source + 0.5 - centre).abs() / reach).clamp(min=0)
    weights *= (source >= start) & (source < start + length)
    # A line without weight can be any line that exists; one inside the box exists in every image of a padded batch.
    return source.clamp(min=0).minimum(start + length - 1), weights / weights.sum(2, keepdim=True)


def _resize(images: Images, rows: Taps, columns: Taps) -> Float[Tensor, "image channel new_height new_width"]:
    """Resize rows first, then columns, from 0 to 255."""
    many, height, width, channels = images.shape
    new_height, new_width = rows[0].shape[1], columns[0].shape[1]
    resized = _combine(images.reshape(many, height, width * channels).float(), rows)
    resized = resized.view(many, new_height, width, channels).permute(0, 2, 3, 1)
    resized = _combine(resized.reshape(many, width, channels * new_height), columns)
    return resized.view(many, new_width, channels, new_height).permute(0, 2, 3, 1).contiguous()


def _combine(lines: Float[Tensor, "image old value"], taps: Taps) -> Float[Tensor, "image new value"]:
    """Return the weighted sums of lines that `taps` describes, by one `embedding_bag` over the lines of all images."""
    many, old, values = lines.shape
    sources, weights = taps
    bags = (sources + old * torch.arange(many, device=lines.device).view(-1, 1, 1)).flatten(0, 1)
    table = lines.reshape(many * old, values)
    sums = embedding_bag(bags, table, mode="sum", per_sample_weights=weights.flatten(0, 1))
    return sums.view(many, sources.shape[1], values)


def _draw_boxes(
    shape: Sequence[int], size: int, names: Collection[str], generator: torch.Generator
) -> Int[Tensor, "image 4"]:
    """Draw the top, left, height and width of what is cut from each image."""
    many, height, width, _ = shape
    if "resized-crop" in names:
        sides = torch.tensor([[height, width]]).expand(many, 2)
        return _resized_crop_boxes(sides[:, :1], sides[:, 1:], generator)
    if "crop" in names:
        draw = torch.rand(many, 2, generator=generator, device=generator.device, dtype=torch.float64)
        corners = (draw * draw.new_tensor([height - size + 1, width - size + 1])).long()
    else:
        corners = torch.tensor([[round((height - size) / 2), round((width - size) / 2)]]).expand(many, 2)
    return torch.cat([corners, torch.full_like(corners, size)], 1)


def _resized_crop_boxes(
    height: Int[Tensor, "image 1"], width: Int[Tensor, "image 1"], generator: torch.Generator
) -> Int[Tensor, "image 4"]:
    """Draw ten boxes for each image; return the first that fits, else the largest central box of an allowed ratio."""
    many = len(height)
    draws = torch.rand(4, many, TRIES, generator=generator, device=generator.device, dtype=torch.float64)
    height, width = (side.to(draws) for side in (height, width))
    low, high = torch.log(draws.new_tensor(RATIO))
    area = height * width * (SCALE[0] + draws[0] * (SCALE[1] - SCALE[0]))
    ratio = torch.exp(low + draws[1] * (high - low))
    tall, wide = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    top, left = (draws[2] * (height - tall + 1)).floor(), (draws[3] * (width - wide + 1)).floor()
    first = fits.float().argmax(1)
    tries = torch.stack([top, left, tall, wide], 2)[torch.arange(many, device=first.device), first].long()
    tallest, widest = height.minimum((width / RATIO[0]).round()), width.minimum((height * RATIO[1]).round())
    central = torch.cat([(height - tallest) // 2, (width - widest) // 2, tallest, widest], 1).long()
    return torch.where(fits.any(1)[:, None], tries, central)


def _draw_jitter(many: int, generator: torch.Generator) -> tuple[Float[Tensor, "image 3"], Int[Tensor, " image"]]:
    """Draw the three factors of each image, in the order that they are applied in, and the number of that order."""
    uniform = torch.rand(many, 3, generator=generator, device=generator.device)
    orders = torch.randint(len(ORDERS), (many,), generator=generator, device=generator.device)
    return 1 + JITTER * (2 * uniform - 1), orders


def _brightness(pixels: Pixels, factor: Tensor) -> None:
    pixels.mul_(factor).clamp_(max=1)


def _contrast(pixels: Pixels, factor: Tensor) -> None:
    """Blend with the mean grey of the image."""
    means = pixels.mean((2, 3))
    grey = means @ means.new_tensor(GREY) if pixels.shape[1] == 3 else means[:, 0]
    pixels.mul_(factor).add_((1 - factor) * grey.view(-1, 1, 1, 1)).clamp_(0, 1)


def _saturation(pixels: Pixels, factor: Tensor) -> None:
    """Blend with the grey version of the image; a grey image stays as it is."""
    if pixels.shape[1] == 3:
        red, green, blue = pixels.unbind(1)
        grey = (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])
        pixels.lerp_(grey[:, None], 1 - factor).clamp_(0, 1)


ORDERS = tuple(permutations((_brightness, _contrast, _saturation)))
