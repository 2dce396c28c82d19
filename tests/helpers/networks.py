"""Networks as others write them, and photos as others take them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image
from scipy.ndimage import gaussian_filter


def colours(path: Path, side: int | str = "side", metadata: dict[str, str] | None = None, last: bool = False) -> Path:
    """A network as others write it: the mean colour of each half of a picture."""
    shape = ["image", side, side, 3] if last else ["image", 3, side, side]
    images = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["image", 3])
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2] if last else [2, 3])
    mean = helper.make_node("ReduceMean", ["input", "axes"], ["features"], keepdims=0)
    model = helper.make_model(
        helper.make_graph([mean], "colours", [images], [features], [axes]), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 9
    onnx.helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


SAID = {
    "anyshot.side": "32",
    "anyshot.mean": "127.5 127.5 127.5",
    "anyshot.deviation": "127.5 127.5 127.5",
    "anyshot.resample": "bicubic",
}


def photo(seed, details=None):
    """Forms and details, as photos have them; with a seed of their own, other details of the same forms."""
    rng = np.random.default_rng(seed)
    layers = [gaussian_filter(rng.normal(size=(160, 160, 3)), (size, size, 0)) * size**1.3 for size in (1.5, 4, 12)]
    if details is not None:
        other = np.random.default_rng(details).normal(size=(160, 160, 3))
        layers[0] = 0.6 * gaussian_filter(other, (1.5, 1.5, 0)) * 1.5**1.3
    image = sum(layers)
    return Image.fromarray((128 + 90 * np.tanh(image / image.std())).astype(np.uint8))
