"""EfficientNet-Lite0, trained on ImageNet and quick on a CPU: images in, one position of 1280 numbers out.

EfficientNet (Tan and Le, ICML 2019, arXiv:1905.11946) as Google changed it for small devices: ReLU6, and no squeeze and
excitation. 3,371,008 parameters, 384 million multiplications for an image of 224x224. It wants pixels as
(x - 127.5) / 127.5, and small pictures enlarged: it was trained at 224 px; at 160 px it is almost twice as fast.
"""

import copy
import hashlib
import math
import platform
from collections.abc import Iterable
from importlib.resources import files
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from anyshot.errors import BadInput

LITE0_SHA256 = "44c98e916089065ecba4da2984f0b7b3831c3d04bc9c21ca0302efcf60db77d4"
Images = Float[Tensor, "image colour height width"]
Grid = Float[Tensor, "image channel height width"]
Maps = Float[Tensor, "image position channel"]

SIZE = 224
STEM, WIDTH, EPSILON = 32, 1280, 1e-3
STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
THIRDS = ((0, 2, 96), (2, 4, 36), (4, 16, 15))  # first block, end, bytes of the widest layer per pixel of the image
LAYER_BYTES = 10_000_000  # several are alive at a time, and glibc keeps some 60 MB for a thread


class EfficientNetLite0(nn.Module):
    """A 3x3 convolution, sixteen inverted bottlenecks, a 1x1 convolution, the mean over the image.

    This is the form to train; `folded` makes the one to embed with.
    """

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        blocks, channels = [], STEM
        for times, kernel, stride, expansion, width in STAGES:
            for index in range(times):
                blocks.append(_Block(channels, width, kernel, 1 if index else stride, expansion))
                channels = width
        self.convs = nn.ModuleList([_conv(3, STEM, 3, 2), _conv(channels, WIDTH)])
        self.norms = _norms(self.convs)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Images) -> Maps:
        x = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images  # grey
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu6(self.norms[0](self.convs[0](_pad(x, 3))))
        x = F.relu6(self.norms[1](self.convs[1](self.blocks(x))))
        return x.mean((2, 3)).unsqueeze(1)


def read_lite0_weights() -> dict[str, Tensor]:
    """The weights as they come with the package, their bytes checked."""
    file = files("anyshot.models") / "weights" / "efficientnet-lite0.safetensors"
    data = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != LITE0_SHA256:
        raise BadInput("the weights of efficientnet-lite0 are missing or damaged: install anyshot again.")
    return {name: value.float() for name, value in load(data).items()}


def load_pretrained() -> EfficientNetLite0:
    """The network with its weights, to be trained further."""
    network = EfficientNetLite0()
    missing, unexpected = network.load_state_dict(read_lite0_weights(), strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return network


class _Block(nn.Module):
    """An inverted bottleneck: widen (1x1), look around (depthwise), narrow (1x1); the input is added where it fits."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        widen = [_conv(channels, inner)] if expansion > 1 else []
        self.convs = nn.ModuleList([*widen, _conv(inner, inner, kernel, stride, inner), _conv(inner, width)])
        self.norms = _norms(self.convs)
        self.kernel, self.stride, self.adds = kernel, stride, stride == 1 and channels == width

    def forward(self, x: Grid) -> Tensor:
        y = x
        if len(self.convs) == 3:
            y = F.relu6(self.norms[0](self.convs[0](y)))
        if self.stride == 2:
            y = _pad(y, self.kernel)
        y = F.relu6(self.norms[-2](self.convs[-2](y)))
        y = self.norms[-1](self.convs[-1](y))
        return x + y if self.adds else y


def _conv(channels: int, width: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(channels, width, kernel, stride, padding, groups=groups, bias=False)


def _norms(convs: Iterable[nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(nn.BatchNorm2d(cast(nn.Conv2d, conv).out_channels, eps=EPSILON) for conv in convs)


def _pad(x: Grid, kernel: int) -> Tensor:
    """TensorFlow's "same" padding before a stride of two: of an odd number of zeros, the far side gets one more."""
    sides: list[int] = []
    for size in (x.shape[3], x.shape[2]):
        zeros = kernel - (size % 2 or 2)
        sides += (zeros // 2, zeros - zeros // 2)
    return F.pad(x, sides)


def fold_for_inference(network: EfficientNetLite0, layer_bytes: int = LAYER_BYTES) -> "FoldedLite0":
    """A copy of the network for inference: the same features up to rounding, in less than half the time.

    Give it batches of 16 to 64 images. `layer_bytes` of 50 million are faster in a process that keeps its memory, and
    up to twice as slow in one that does not.
    """
    return FoldedLite0(copy.deepcopy(network).eval(), layer_bytes).eval()


class FoldedLite0(nn.Module):
    """EfficientNet-Lite0 for inference: batch norms are folded into the convolutions, and all is seen in a mirror.

    TensorFlow puts an odd zero of its padding on the far side. In a mirror that is the near side, where
    `padding=kernel // 2` puts it for every size of image. So kernels and images are turned by 180 degrees, no layer
    needs a padded copy of its input, and the mean over the image stays what it was.

    On x86 the layers hand on oneDNN's blocked tensors, and ReLU6 happens inside the convolution: by the operators of
    torch.compile, without its compiler. They are tried once; where they fail or differ, ordinary ones do the work.
    A batch goes through each third of the network in parts whose widest layer has at most `layer_bytes`. Memory of
    large layers the C library fetches from the system and gives back each time, which takes as long as the layers do;
    that of small ones it keeps. But each part costs some 0.07 ms a layer, so they should not be smaller than that.
    """

    width = WIDTH

    def __init__(self, network: EfficientNetLite0, layer_bytes: int) -> None:
        super().__init__()
        self.convs = _mirrored(network)
        self.blocks = nn.ModuleList(_mirrored(block) for block in network.blocks)
        self.adds = [bool(block.adds) for block in network.blocks]
        self.requires_grad_(False)
        self.layer_bytes, self.blocked = layer_bytes, _blocked_works(self)

    def forward(self, images: Images) -> Maps:
        if not (self.blocked and _is_plain(images)):
            x = images.flip(2, 3).contiguous(memory_format=torch.channels_last)
            return self.layers(x, 0, len(self.blocks)).mean((2, 3)).unsqueeze(1)
        pixels = images.shape[0] * images.shape[2] * images.shape[3]
        parts: list[Tensor] = []
        for start, stop, bytes_ in THIRDS:
            count = max(1, math.ceil(pixels * bytes_ / self.layer_bytes))
            inputs: Iterable[Tensor] = parts
            if start == 0:
                inputs = (part.flip(2, 3).contiguous().to_mkldnn() for part in images.chunk(count))
            elif count != len(parts):
                inputs = (part.to_mkldnn() for part in torch.cat([part.to_dense() for part in parts]).chunk(count))
            parts = [self.layers(part, start, stop) for part in inputs]
        return torch.cat([part.to_dense().mean((2, 3)) for part in parts]).unsqueeze(1)

    def layers(self, x: Grid, start: int, stop: int) -> Tensor:
        """Through the blocks from `start` to `stop`, with the layer before the first and the one after the last."""
        if start == 0:
            x = _convolve(self.convs[0], x, "hardtanh")
        for index in range(start, stop):
            *before, narrow = cast(nn.ModuleList, self.blocks[index])
            y = x
            for conv in before:
                y = _convolve(conv, y, "hardtanh")
            y = _convolve(narrow, y, "none")
            x = y.add_(x) if self.adds[index] else y
        return _convolve(self.convs[1], x, "hardtanh") if stop == len(self.blocks) else x


def _mirrored(part: nn.Module) -> nn.ModuleList:
    """The convolutions of a part, turned by 180 degrees, with the batch norms of the part inside."""
    pairs = zip(cast(nn.ModuleList, part.convs), cast(nn.ModuleList, part.norms), strict=True)
    convs = [fuse_conv_bn_eval(cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm)) for conv, norm in pairs]
    for conv in convs:
        conv.padding = tuple(side // 2 for side in conv.kernel_size)
        conv.weight = nn.Parameter(conv.weight.detach().flip(2, 3).contiguous())
    return nn.ModuleList(convs)


def _convolve(conv: nn.Module, x: Grid, then: Literal["hardtanh", "none"]) -> Tensor:
    """A convolution, then perhaps ReLU6, which oneDNN calls a hardtanh from 0 to 6."""
    assert isinstance(conv, nn.Conv2d)
    if x.is_mkldnn:
        how = (conv.padding, conv.stride, conv.dilation, conv.groups)
        bounds = [0.0, 6.0] if then == "hardtanh" else []
        return torch.ops.mkldnn._convolution_pointwise(x, conv.weight, conv.bias, *how, then, bounds, "")
    return F.relu6(conv(x), inplace=True) if then == "hardtanh" else conv(x)


def _is_plain(images: Images) -> bool:
    """Blocked tensors are for float32 on a CPU, have no gradients, and cannot be traced."""
    traced = torch.compiler.is_compiling() or images.requires_grad
    return images.device.type == "cpu" and images.dtype == torch.float32 and not traced


@torch.no_grad()
def _blocked_works(network: FoldedLite0) -> bool:
    """Whether this torch and this processor have the blocked operators, tried on a small picture."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    weight = network.convs[0].weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    picture = torch.linspace(-1, 1, 3 * 33 * 34).view(1, 3, 33, 34)
    try:
        blocked = network.layers(picture.to_mkldnn(), 0, len(network.blocks)).to_dense()
    except (AttributeError, NotImplementedError, RuntimeError):  # the operators are torch's own affair, and may change
        return False
    return torch.allclose(blocked, network.layers(picture, 0, len(network.blocks)), rtol=1e-3, atol=1e-3)
