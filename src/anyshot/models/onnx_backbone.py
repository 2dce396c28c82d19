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
TYPES: dict[str, type[np.generic]] = {
    "tensor(uint8)": np.uint8,
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
}


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
        self._session, self._path = session, path
        inputs, outputs = session.get_inputs(), [one.name for one in session.get_outputs()]
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in TYPES:
            described = ", ".join(f"{one.name} {one.shape} of {one.type}" for one in inputs)
            pictures = "pictures (image, channel, side, side) of float, float16, double or uint8"
            raise BadInput(f"{path} must have one input, {pictures}, not {described}.")
        self._input_name, shape, self._type = inputs[0].name, inputs[0].shape, TYPES[inputs[0].type]
        self._batch_size = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else 0
        self._is_channels_last = shape[3] in (1, 3) and shape[1] not in (1, 3)
        self.channels = 1 if shape[3 if self._is_channels_last else 1] == 1 else 3
        self._output = metadata.get("anyshot.output", outputs[0])
        if self._output not in outputs:
            raise BadInput(f"{path} has no output {self._output!r}: it has {', '.join(outputs)}.")
        self._read_preparation(metadata, *(shape[1:3] if self._is_channels_last else shape[2:]))

    def _read_preparation(self, metadata: Mapping[str, str], height: Any, width: Any) -> None:
        """Read how pictures are prepared; of a dynamic axis, ONNX Runtime gives a name or None."""
        mean, deviation = ([255 * value for value in values] for values in MOMENTS[self.channels])
        defaults = {"side": [DEFAULT_SIDE], "margin": [1.0], "mean": mean, "deviation": deviation}
        numbers = {name: self._read_numbers(metadata, f"anyshot.{name}", some) for name, some in defaults.items()}
        self.has_normalisation = "anyshot.mean" in metadata or self._type is np.uint8
        self._mean, self._deviation = (np.array(numbers[name], np.float32) for name in ("mean", "deviation"))
        self.side = height if isinstance(height, int) else int(numbers["side"][0])
        self.margin, resample = numbers["margin"][0], metadata.get("anyshot.resample", "bilinear")
        is_square = 0 < self.side <= MAX_SIDE and (not isinstance(width, int) or width == self.side)
        is_scaled = (self._deviation > 0).all() and 1 <= self.margin <= MAX_MARGIN and resample in get_args(Resample)
        if not is_square or not is_scaled:
            raise BadInput(
                f"{self._path} takes {self.side} x {width or self.side} pixels, resized by {resample!r} with a margin "
                f"of {self.margin:g}: squares of 1 to {MAX_SIDE} are given, bilinear or bicubic, with a margin from 1 "
                f"to {MAX_MARGIN} and deviations above 0."
            )
        self.resample: Resample = resample  # type: ignore[assignment]

    def _read_numbers(self, metadata: Mapping[str, str], key: str, default: list[float]) -> list[float]:
        """Return numbers of the metadata, as many as the default has."""
        try:
            values = [float(word) for word in metadata[key].split()] if key in metadata else default
        except ValueError:
            values = []
        if len(values) != len(default) or not np.isfinite(values).all():
            raise BadInput(f"{self._path} says that its {key} is {metadata[key]!r}: numbers were expected.")
        return values

    def __call__(self, pictures: UInt8[np.ndarray, "image side side 3"]) -> Float[np.ndarray, "image ..."]:
        pixels: np.ndarray = convert_channels(pictures, self.channels)
        if self._type is not np.uint8:
            pixels = ((pixels - self._mean) / self._deviation).astype(self._type)
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
