"""EfficientNet-Lite0, trained on ImageNet and quick on a CPU: images in, one position of 1280 numbers out.

EfficientNet (Tan and Le, ICML 2019, arXiv:1905.11946) as Google changed it for small devices: ReLU6, and no squeeze and
excitation. It has 3,371,008 parameters and 384 million multiplications for an image of 224x224. Pixels are scaled as
(x - 127.5) / 127.5. It was trained at 224 px, so small pictures are enlarged; at 160 px it is almost twice as fast.
"""

import copy
import hashlib
import platform
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Literal, cast

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

SIZE = 224  # pixels of the pictures that it was trained on
STEM, WIDTH, EPSILON = 32, 1280, 1e-3  # channels of the first and the last layer, epsilon of the batch norms
STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# Images that go through oneDNN's layers together: the fastest of 2, 4 and 8 on one core (97 images/s at 224 px, 184 at
# 160 px). For many more, the allocator asks the system for memory in every layer and returns it, which is slower.
PART = 8


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 (Tan and Le 2019): a 3x3 convolution, 16 inverted bottlenecks, a 1x1 convolution, the mean.

    This is the form to train; `FoldedLite0` is the one to embed with.
    """

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
        """Return features "image 1 1280"."""
        x = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images  # grey
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu6(self.norms[0](self.convs[0](_pad(x, 3))))
        x = F.relu6(self.norms[1](self.convs[1](self.blocks(x))))
        return x.mean((2, 3)).unsqueeze(1)


def read_lite0_weights() -> dict[str, Tensor]:
    """Return the weights that come with the package, after a check of their bytes."""
    file = files("anyshot.models") / "weights" / "efficientnet-lite0.safetensors"
    data = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != LITE0_SHA256:
        raise BadInput("the weights of efficientnet-lite0 are missing or damaged: install anyshot again.")
    return {name: value.float() for name, value in load(data).items()}


def load_pretrained() -> EfficientNetLite0:
    """Return the network with its weights, to be trained further."""
    network = EfficientNetLite0()
    network.load_state_dict({**network.state_dict(), **read_lite0_weights()})  # which lack only counters of batches
    return network


class _Block(nn.Module):
    """An inverted bottleneck: expand (1x1), depthwise convolution, project (1x1), and a residual where shapes allow."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        expand = [_conv(channels, inner)] if expansion > 1 else []
        self.convs = nn.ModuleList([*expand, _conv(inner, inner, kernel, stride, inner), _conv(inner, width)])
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
    """Pad like TensorFlow's "same" before a stride of two: the right and the lower side get the odd zero."""
    sides: list[int] = []
    for size in (x.shape[3], x.shape[2]):
        zeros = kernel - (size % 2 or 2)
        sides += (zeros // 2, zeros - zeros // 2)
    return F.pad(x, sides)


class FoldedLite0(nn.Module):
    """A copy of EfficientNet-Lite0 for inference: batch norms are folded into the convolutions, images are rotated.

    It gives the same features up to rounding, in less than half the time on a CPU.
    TensorFlow pads an odd zero on the right and below, torch with `padding=kernel // 2` on the left and above. Images
    and kernels rotated by 180 degrees make both the same, so that no layer needs a padded copy of its input; the mean
    over the image does not change.

    On x86 the layers pass tensors in oneDNN's blocked layout, and ReLU6 is part of the convolution, by the operators
    that torch.compile uses. Where these fail, or give other values in a trial, ordinary layers in channels-last order
    are used, at 0.5 to 0.8 of the speed (64 images of 224 px on one core: 90.6 images/s against 45.1 to 71.6).
    """

    def __init__(self, network: EfficientNetLite0) -> None:
        super().__init__()
        network = copy.deepcopy(network).eval()
        self.convs = _fold_and_rotate(network)
        self.blocks = nn.ModuleList(_fold_and_rotate(block) for block in network.blocks)
        self.adds = [bool(block.adds) for block in network.blocks]
        self.requires_grad_(False)
        self.has_blocked = _has_blocked_layers(self)

    def forward(self, images: Images) -> Maps:
        """Return features "image 1 1280"."""
        if not (self.has_blocked and images.device.type == "cpu"):
            return self._features(images.flip(2, 3).contiguous(memory_format=torch.channels_last))
        return torch.cat([self._features(part.flip(2, 3).contiguous().to_mkldnn()) for part in images.split(PART)])

    def _features(self, x: Grid) -> Tensor:
        x = _convolve(self.convs[0], x, "hardtanh")
        for block, adds in zip(self.blocks, self.adds, strict=True):
            *before, project = cast(nn.ModuleList, block)
            y = x
            for conv in before:
                y = _convolve(conv, y, "hardtanh")
            y = _convolve(project, y, "none")
            x = y.add_(x) if adds else y
        x = _convolve(self.convs[1], x, "hardtanh")
        return (x.to_dense() if x.is_mkldnn else x).mean((2, 3)).unsqueeze(1)


def _fold_and_rotate(part: nn.Module) -> nn.ModuleList:
    """Return the convolutions of a part, rotated by 180 degrees, with its batch norms folded in."""
    convs = fold_norms(part)
    for conv in convs:
        conv.padding = tuple(side // 2 for side in conv.kernel_size)
        conv.weight = nn.Parameter(conv.weight.detach().flip(2, 3).contiguous())
    return nn.ModuleList(convs)


def fold_norms(part: Any) -> list[nn.Conv2d]:
    """Return copies of the convolutions in the list `convs`, with the batch norms in the list `norms` folded in."""
    return [fuse_conv_bn_eval(conv, norm) for conv, norm in zip(part.convs, part.norms, strict=True)]


def _convolve(conv: nn.Module, x: Grid, then: Literal["hardtanh", "none"]) -> Tensor:
    """Apply a convolution and, with "hardtanh", ReLU6, which oneDNN calls a hardtanh from 0 to 6."""
    assert isinstance(conv, nn.Conv2d)
    if x.is_mkldnn:
        geometry = (conv.padding, conv.stride, conv.dilation, conv.groups)
        bounds = [0.0, 6.0] if then == "hardtanh" else []
        return torch.ops.mkldnn._convolution_pointwise(x, conv.weight, conv.bias, *geometry, then, bounds, "")
    return F.relu6(conv(x), inplace=True) if then == "hardtanh" else conv(x)


@torch.no_grad()
def _has_blocked_layers(network: FoldedLite0) -> bool:
    """Return whether this torch and this processor have the blocked operators, by a trial on a small picture."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    picture = torch.linspace(-1, 1, 3 * 33 * 34).view(1, 3, 33, 34)
    try:
        blocked = network._features(picture.to_mkldnn())
    except (AttributeError, NotImplementedError, RuntimeError):  # the operators are private to torch and may change
        return False
    return torch.allclose(blocked, network._features(picture), rtol=1e-3, atol=1e-3)
