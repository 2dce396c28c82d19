"""Images to network input, whole batches at a time, on the device the batch is on (the paper's Section 5, "Images").

`augment` is the training side, `prepare` the evaluation side; both end in normalised floats. Every augmentation has the
distribution that torchvision documents for its namesake, drawn per image from the generator that is passed:

    resized-crop   RandomResizedCrop(size, scale=(0.08, 1), ratio=(3/4, 4/3)), bilinear and antialiased
    crop           RandomCrop(size, padding=8) at size 84; at other sizes the padding is the same share of the side
    flip           RandomHorizontalFlip(0.5)
    jitter         ColorJitter(0.4, 0.4, 0.4): brightness, contrast and saturation in a random order, a clamp after each

What differs from torchvision on PIL images is that nothing is rounded to whole grey levels on the way.
"""

from collections.abc import Collection
from itertools import permutations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from anyshot.errors import BadInput, unknown

Images = UInt8[Tensor, "image height width channel"]
Resized = UInt8[Tensor, "image new_height new_width channel"]
Pixels = Float[Tensor, "image channel side side"]  # from 0 to 1 until they are normalised

NAMES = ("resized-crop", "crop", "flip", "jitter")
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
JITTER = 0.4
PADDING = 8 / 84
MARGIN = 92 / 84  # evaluation resizes the shorter side to 92 and cuts the central 84
GREY = (0.299, 0.587, 0.114)
MOMENTS = {1: ((0.5,), (0.5,)), 3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}  # 3: of ImageNet


def augment(images: Images, names: Collection[str], generator: torch.Generator, size: int) -> Pixels:
    """Training input of side `size`, augmented by `names` (any of NAMES), normalised.

    All random numbers are drawn on the generator's device, so that one seed gives one result on every device.
    Without a crop among the names, the geometry is that of `prepare`.
    """
    for name in names:
        if name not in NAMES:
            raise BadInput(unknown("augmentation", name, NAMES))
    if "crop" in names and "resized-crop" in names:
        raise BadInput("augment by 'crop' or by 'resized-crop', not by both.")
    _check_channels(images)
    if "resized-crop" not in names:
        images = _evaluation_resize(images, size)
        if "crop" in names:
            images = _pad(images, round(size * PADDING))
    many, height, width, _ = images.shape
    boxes = _boxes(many, height, width, generator) if "resized-crop" in names else None
    corners = _corners(many, height - size, width - size, generator) if "crop" in names else None
    flips = torch.rand(many, generator=generator, device=generator.device) < (0.5 if "flip" in names else 0.0)
    factors, orders = _jitter_draws(many, generator)
    out = torch.empty(many, images.shape[3], size, size, device=images.device)
    # Images that share an order of the jitter go through it together: no step is approximated, a group fits a cache.
    for number, order in enumerate(permutations((_brightness, _contrast, _saturation))):
        group = (orders == number).nonzero().squeeze(1)
        here = group.to(images.device)
        if boxes is not None:
            pixels = _resized_crop(images[here], boxes[group].to(images.device), flips[group].to(images.device), size)
        else:
            top_left = _centre(len(group), height - size, width - size) if corners is None else corners[group]
            pixels = _crop(images, here, top_left.to(images.device), flips[group].to(images.device), size)
        if "jitter" in names:
            for adjust, factor in zip(order, factors[group].to(images.device).unbind(1), strict=True):
                adjust(pixels, factor.view(-1, 1, 1, 1))
        out[here] = _normalise(pixels)
    return out


def prepare(images: Images, size: int) -> Pixels:
    """Evaluation input of side `size`: larger images are resized to 92/84 of it and cut to the centre; normalised."""
    _check_channels(images)
    images = _evaluation_resize(images, size)
    top, left = _centre(1, images.shape[1] - size, images.shape[2] - size)[0].tolist()
    return _normalise(_to_pixels(images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)))


def _check_channels(images: Images) -> None:
    if images.shape[3] not in MOMENTS:
        raise BadInput(f"images have {images.shape[3]} channels: 1 (grey) or 3 (red, green, blue) were expected.")


def _normalise(pixels: Pixels) -> Pixels:
    mean, deviation = (pixels.new_tensor(moment).view(-1, 1, 1) for moment in MOMENTS[pixels.shape[1]])
    return pixels.sub_(mean).div_(deviation)


def _to_pixels(planes: UInt8[Tensor, "image channel height width"]) -> Float[Tensor, "image channel height width"]:
    return planes.contiguous().float().mul_(1 / 255)


def _evaluation_resize(images: Images, size: int) -> Resized:
    """Images with every side at least `size`: untouched at that size, else the shorter side at 92/84 of it."""
    _, height, width, _ = images.shape
    shorter = min(height, width)
    target = size if shorter <= size else round(size * MARGIN)
    if shorter == target:
        return images
    sides = (round(height * target / shorter), round(width * target / shorter))
    rows, columns = (
        _resize_weights(torch.zeros(1), torch.full((1,), float(old)), new, old).to(images.device)
        for old, new in zip((height, width), sides, strict=True)
    )
    pixels = rows @ images.permute(0, 3, 1, 2).float() @ columns.transpose(1, 2)
    return pixels.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _pad(images: Images, margin: int) -> Resized:
    return torch.nn.functional.pad(images, (0, 0, margin, margin, margin, margin))


def _centre(many: int, spare_height: int, spare_width: int) -> Int[Tensor, "image 2"]:
    return torch.tensor([[round(spare_height / 2), round(spare_width / 2)]]).expand(many, 2)


def _corners(many: int, spare_height: int, spare_width: int, generator: torch.Generator) -> Int[Tensor, "image 2"]:
    """The top left corner of a random crop, uniform over all places where it fits."""
    draw = torch.rand(many, 2, generator=generator, device=generator.device, dtype=torch.float64)
    return (draw * draw.new_tensor([spare_height + 1, spare_width + 1])).long()


def _crop(
    images: Images, which: Int[Tensor, " group"], corners: Int[Tensor, "group 2"], flips: Tensor, size: int
) -> Float[Tensor, "group channel side side"]:
    """Cut each image at its own corner: an index into a view of all crops, so that nothing but the crop is copied."""
    crops = images.unfold(1, size, 1).unfold(2, size, 1)
    cut = crops[which, corners[:, 0], corners[:, 1]]
    cut[flips] = cut[flips].flip(3)
    return _to_pixels(cut)


def _boxes(many: int, height: int, width: int, generator: torch.Generator) -> Float[Tensor, "image 4"]:
    """Top, left, height and width of RandomResizedCrop: the first of ten tries that fits, else the central box."""
    draws = torch.rand(4, many, TRIES, generator=generator, device=generator.device, dtype=torch.float64)
    low, high = torch.log(draws.new_tensor(RATIO))
    area = height * width * (SCALE[0] + draws[0] * (SCALE[1] - SCALE[0]))
    ratio = torch.exp(low + draws[1] * (high - low))
    high_side, wide_side = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (high_side >= 1) & (high_side <= height) & (wide_side >= 1) & (wide_side <= width)
    top, left = (draws[2] * (height - high_side + 1)).floor(), (draws[3] * (width - wide_side + 1)).floor()
    tries = torch.stack([top, left, high_side, wide_side], 2)
    chosen = tries[torch.arange(many, device=tries.device), fits.float().argmax(1)]
    high_side_, wide_side_ = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    central = ((height - high_side_) // 2, (width - wide_side_) // 2, high_side_, wide_side_)
    return torch.where(fits.any(1)[:, None], chosen, chosen.new_tensor(central)).float()


def _resize_weights(
    start: Float[Tensor, " image"], length: Float[Tensor, " image"], new: int, old: int
) -> Float[Tensor, "image new old"]:
    """Matrices that resize the stretch [start, start + length) of a side of `old` pixels to `new` pixels.

    The triangle filter of Pillow's antialiased BILINEAR: as wide as a source pixel when enlarging, as wide as a target
    pixel when reducing, renormalised at the edges of the stretch.
    """
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    scale = length / new
    centre = start + (torch.arange(new, device=start.device).view(-1, 1) + 0.5) * scale
    source = torch.arange(old, device=start.device) + 0.5
    weights = (source - centre).abs_().div_(-scale.clamp(min=1)).add_(1).clamp_(min=0)
    weights *= (source > start) & (source < start + length)
    return weights.div_(weights.sum(2, keepdim=True))


def _resized_crop(images: Images, boxes: Float[Tensor, "image 4"], flips: Tensor, size: int) -> Pixels:
    """Crop, resize and flip as two matrix products, one a side."""
    _, height, width, _ = images.shape
    top, left, high_side, wide_side = boxes.unbind(1)
    rows = _resize_weights(top, high_side, size, height)
    columns = _resize_weights(left, wide_side, size, width)
    columns[flips] = columns[flips].flip(1)
    planes = _to_pixels(images.permute(0, 3, 1, 2))
    return rows[:, None] @ planes @ columns.transpose(1, 2)[:, None]


def _jitter_draws(many: int, generator: torch.Generator) -> tuple[Float[Tensor, "image 3"], Int[Tensor, " image"]]:
    """The three factors of each image in the order they are applied, and the number of that order."""
    uniform = torch.rand(many, 3, generator=generator, device=generator.device)
    orders = torch.randint(6, (many,), generator=generator, device=generator.device)
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
        grey = (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).mul_((1 - factor)[:, 0])
        pixels.mul_(factor).add_(grey[:, None]).clamp_(0, 1)
