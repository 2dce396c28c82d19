"""Run any network in an ONNX file by ONNX Runtime: pictures in, features out.

The metadata of the file say how pictures are prepared, as `anyshot export` writes them:

    anyshot.side       side of the square input, in pixels
    anyshot.margin     larger pictures are resized to this multiple of the side before the centre is cut
    anyshot.resample   bilinear or bicubic
    anyshot.mean, anyshot.deviation    mean and standard deviation of pixels from 0 to 255, a number per channel
    anyshot.output     name of the output with the features; the first by default

A file without them is used like most networks of ImageNet, with a warning.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.data.augmentation import MOMENTS, convert_channels
from anyshot.data.pictures import Resample
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import read_bytes
from anyshot.models.devices import embedding_device
from anyshot.models.embedders import Embedder

MISSING = "ONNX files need the packages of an extra: pip install 'anyshot[onnx]'."
DEFAULT_SIDE = 224.0  # pixels, for a file that does not say: as most networks of ImageNet
MAX_SIDE, MAX_MARGIN = 4096, 4  # a file with larger values is refused
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def onnx_metadata(embedder: Embedder, output: str) -> dict[str, str]:
    """Return the metadata for an ONNX file of an embedder's pixel network, which takes pixels from 0 to 255."""
    return {
        "anyshot.side": str(embedder.side),
        "anyshot.margin": repr(embedder.margin),
        "anyshot.resample": embedder.resample,
        "anyshot.mean": " ".join(["0"] * embedder.channels),
        "anyshot.deviation": " ".join(["1"] * embedder.channels),
        "anyshot.output": output,
    }


def onnx_embedder(path: Path) -> Embedder:
    """Return the embedder of an ONNX file."""
    with as_bad_input(ImportError, MISSING):
        import onnxruntime
    data = read_bytes(path, 1 << 31)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # batches run in parallel instead
    hint = "; one whose weights lie in a file beside it must be saved as one file."
    with as_bad_input(Exception, f"{path} cannot be run as an ONNX file", hint):  # its errors have no common class
        session = onnxruntime.InferenceSession(data, options, providers=_providers(onnxruntime))
    sha256 = hashlib.sha256(data).hexdigest()
    network = _Network(session, session.get_modelmeta().custom_metadata_map, path)
    if not network.has_normalisation:
        warnings.warn(
            f"{path} does not say what it was trained with: it is given pictures of {network.side} px, resized "
            "bilinearly and normalised as those of ImageNet.",
            stacklevel=3,
        )
    return Embedder(
        network,
        network.side,
        network.margin,
        network.resample,
        about={"backbone": f"{path.name}, an ONNX file, {network.side} px, sha256 {sha256[:12]}"},
        weights_hash=sha256,
        file=data,
    )


def _providers(onnxruntime: Any) -> list[Any]:
    """Return the execution providers: the chosen GPU, where the runtime was built for it, and the CPU."""
    kind, _, number = embedding_device().partition(":")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    wanted = {"cuda": ("CUDAExecutionProvider", {"device_id": number or "0"}), "mps": ("CoreMLExecutionProvider", {})}
    if kind not in wanted or wanted[kind][0] not in onnxruntime.get_available_providers():
        raise BadInput(f"ONNX Runtime cannot use {kind} here: install a build of it that can, or leave --device out.")
    return [wanted[kind], "CPUExecutionProvider"]


class _Network:
    """A session of ONNX Runtime that takes uint8 pictures "image side side 3"."""

    def __init__(self, session: Any, metadata: Mapping[str, str], path: Path) -> None:
        self._session, self._metadata, self._path = session, metadata, path
        inputs = session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            shapes = ", ".join(f"{one.name} {one.shape}" for one in inputs)
            raise BadInput(f"{path} must have one input, pictures (image, channel, side, side), not {shapes}.")
        self._input_name, shape, self._input_type = inputs[0].name, inputs[0].shape, inputs[0].type
        if self._input_type != "tensor(uint8)" and self._input_type not in TYPES:
            raise BadInput(f"{path} takes {self._input_type}: pictures are float, float16, double or uint8.")
        self._batch_size = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else 0
        self._is_channels_last = shape[3] in (1, 3) and shape[1] not in (1, 3)
        self.channels = 1 if shape[3 if self._is_channels_last else 1] == 1 else 3
        self.side = self._read_side(*(shape[1:3] if self._is_channels_last else shape[2:]))
        self._read_normalisation()
        outputs = [one.name for one in session.get_outputs()]
        self._output = metadata.get("anyshot.output", outputs[0])
        if self._output not in outputs:
            raise BadInput(f"{path} has no output {self._output!r}: it has {', '.join(outputs)}.")

    def _read_side(self, height: Any, width: Any) -> int:
        """Return the side of the square input; of a dynamic axis, ONNX Runtime gives a name or None."""
        side = height if isinstance(height, int) else int(self._numbers("anyshot.side", [DEFAULT_SIDE])[0])
        if not 0 < side <= MAX_SIDE or (isinstance(width, int) and width != side):
            raise BadInput(f"{self._path} takes {side} x {width or side} pixels: squares of 1 to {MAX_SIDE} are given.")
        return side

    def _read_normalisation(self) -> None:
        """Read how pixels are normalised and pictures resized."""
        self.has_normalisation = "anyshot.mean" in self._metadata or self._input_type == "tensor(uint8)"
        default = [[255 * value for value in values] for values in MOMENTS[self.channels]]
        self._mean = np.array(self._numbers("anyshot.mean", default[0]), np.float32)
        self._deviation = np.array(self._numbers("anyshot.deviation", default[1]), np.float32)
        self.margin = self._numbers("anyshot.margin", [1.0])[0]
        if not (self._deviation > 0).all() or not 1 <= self.margin <= MAX_MARGIN:
            raise BadInput(f"{self._path} needs deviations above 0 and a margin from 1 to {MAX_MARGIN}.")
        resample = self._metadata.get("anyshot.resample", "bilinear")
        if resample not in get_args(Resample):
            raise BadInput(f"{self._path} wants pictures resized by {resample!r}: it can be bilinear or bicubic.")
        self.resample: Resample = resample  # type: ignore[assignment]

    def _numbers(self, key: str, default: list[float]) -> list[float]:
        """Return numbers of the metadata, as many as the default has."""
        try:
            values = [float(word) for word in self._metadata[key].split()] if key in self._metadata else default
        except ValueError:
            values = []
        if len(values) != len(default) or not np.isfinite(values).all():
            raise BadInput(f"{self._path} says that its {key} is {self._metadata[key]!r}: numbers were expected.")
        return values

    def __call__(self, pictures: UInt8[np.ndarray, "image side side 3"]) -> Float[np.ndarray, "image ..."]:
        pixels: np.ndarray = convert_channels(pictures, self.channels)
        if self._input_type != "tensor(uint8)":
            pixels = ((pixels - self._mean) / self._deviation).astype(TYPES[self._input_type])
        if not self._is_channels_last:
            pixels = pixels.transpose(0, 3, 1, 2)
        with as_bad_input(Exception, f"{self._path} fails on pictures of {self.side} px", "."):
            batches = self._batches(np.ascontiguousarray(pixels))
            parts = [self._session.run([self._output], {self._input_name: batch})[0] for batch in batches]
        features = np.concatenate(parts)[: len(pictures)].astype(np.float32)
        if features.ndim == 4:  # feature maps "image channel height width"
            features = features.reshape(*features.shape[:2], -1).transpose(0, 2, 1)
        return np.ascontiguousarray(features)

    def _batches(self, pixels: np.ndarray) -> list[np.ndarray]:
        """Split pictures into batches of the size that the file demands, if any; blank pictures fill up the last."""
        if not self._batch_size:
            return [pixels]
        blank = np.zeros((-len(pixels) % self._batch_size, *pixels.shape[1:]), pixels.dtype)
        filled = np.concatenate([pixels, blank])
        return np.split(filled, len(filled) // self._batch_size)
