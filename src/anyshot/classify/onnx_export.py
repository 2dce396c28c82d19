"""Classifiers as ONNX files: features (or images), prototypes and counts in; logits, vectors and evidence out.

The prototypes are an input with a default, so classes can be added without a new export: average the `vectors` that the
file itself returns for the examples of a new class, append the mean to `prototypes`, and append the number of examples
to `counts` where the file has that input. The file refines the prototypes. Only FRN's ridge regression and the
fit of logistic have no operator in ONNX, so their prototypes have to be refined before, as the default is.

The metadata hold the rest:

    anyshot.classes     the names of the classes as JSON, in the order of the logits
    anyshot.threshold   an image is of none of the classes if its `evidence` (or, without that output, its largest
                        logit) is below
    anyshot.unjudged    names of classes whose images are never rejected, as JSON: their examples are all one group
    anyshot.pictures    how pictures are prepared, in words; numbers are in anyshot.side, margin, resample, mean and
                        deviation (see `anyshot.models.onnx_backbone`)
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyshot.classify.classifier import FewShotClassifier
from anyshot.errors import BadInput, as_bad_input, first_line
from anyshot.files import atomic_write
from anyshot.models.embedders import Embedder
from anyshot.models.law import BoundHead
from anyshot.models.onnx_backbone import MISSING, onnx_metadata

OPSET = 20


class _Graph(nn.Module):
    """The classifier, and the backbone where there is one, as a module that torch can export."""

    scale: Tensor

    def __init__(self, classifier: FewShotClassifier, backbone: nn.Module | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.embed, self.apply_readout, self.head = classifier.embed_, classifier.apply_readout_, classifier.head_.head
        self.positions, self.names = classifier.positions_, tuple(classifier.head_.parameters)
        self.register_buffer("scale", torch.tensor(classifier.scale_, dtype=torch.float32))
        for name, value in classifier.head_.parameters.items():
            self.register_buffer(f"learned_{name}", value.float())

    def forward(self, inputs: Tensor, prototypes: Tensor, counts: Tensor | None = None) -> tuple[Tensor, ...]:
        features = inputs.unflatten(1, (self.positions, -1)) if self.backbone is None else self.backbone(inputs)
        parameters = {name: getattr(self, f"learned_{name}") for name in self.names}
        vectors = self.apply_readout(self.embed(features, parameters), parameters)
        bound_head = BoundHead(self.head, parameters)
        refined = prototypes if counts is None else self.head.refined(prototypes, counts, parameters)
        logits = self.scale * bound_head.score(bound_head.transform(vectors), refined)
        if self.head.estimator is None or counts is None:
            return logits, vectors
        evidence = self.scale * bound_head.evidence(vectors, prototypes, counts)
        return logits, vectors, evidence.gather(1, logits.argmax(1, keepdim=True))[:, 0]


def export_backbone(backbone: Embedder, path: Path) -> None:
    """Write a backbone as an ONNX file, whose input is pixels from 0 to 255 "image channel side side"."""
    with as_bad_input(ImportError, MISSING):
        import onnx
    network, example = get_pixel_network(backbone)
    model = _trace(network.eval(), (example,), ({0: torch.export.Dim("image")},), ["images"], ["features"])
    onnx.helper.set_model_props(
        model, {"library": "anyshot", "backbone": str(backbone.about["backbone"])} | onnx_metadata(backbone, "features")
    )
    _write(model, path)


def get_pixel_network(backbone: Embedder) -> tuple[nn.Module, Tensor]:
    """Return the network of an embedder on pixels from 0 to 255, and a batch of blank images to trace it with."""
    if backbone.pixel_network is None:
        kind = "an ONNX file" if backbone.file is not None else "a function"
        raise BadInput(f"a backbone that is {kind} cannot be exported; export the classifier of its features.")
    return backbone.pixel_network, torch.zeros(3, backbone.channels, backbone.side, backbone.side)


def export_onnx(classifier: FewShotClassifier, path: Path, backbone: Embedder | None = None) -> None:
    """Write the classifier, with the backbone before it where there is one."""
    with as_bad_input(ImportError, MISSING):
        import onnx
    head, support = classifier.head_.head, classifier.support_
    refines = head.refine is not None and head.has_onnx  # whether the file refines the prototypes
    means = torch.from_numpy(support.means)
    defaults = {"prototypes": (means if refines else classifier.prototypes_).float()}
    if refines:
        defaults["counts"] = torch.from_numpy(support.counts.copy())
    if backbone is None:
        network, example = None, torch.zeros(3, classifier.n_features_in_)
    else:
        network, example = get_pixel_network(backbone)
    graph = _Graph(classifier, network).eval()
    way = torch.export.Dim("way", min=1)
    dynamic = {"inputs": {0: torch.export.Dim("image")}, **{name: {0: way} for name in defaults}}
    # While tracing, a size of one would be taken for a constant.
    sample = [value if len(value) > 1 else torch.cat([value] * 3) for value in defaults.values()]
    names = ["features" if backbone is None else "images", *defaults]
    has_evidence = head.estimator is not None and refines
    outputs = ["logits", "vectors", *(["evidence"] if has_evidence else [])]
    model = _trace(graph, (example, *sample), dynamic, names, outputs)
    # In ONNX an initializer with the name of an input is its default.
    for name, value in defaults.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
    onnx.helper.set_model_props(model, _make_metadata(classifier, backbone, has_evidence or head.estimator is None))
    _write(model, path)


def _make_metadata(classifier: FewShotClassifier, backbone: Embedder | None, can_reject: bool) -> dict[str, str]:
    """Return the metadata of the file; the threshold only where its outputs tell whether an image is below."""
    metadata = {"classes": "\n".join(map(str, classifier.classes_)), "head": classifier.head, "library": "anyshot"}
    metadata["anyshot.classes"] = json.dumps(classifier.classes_.tolist(), ensure_ascii=False)
    metadata["anyshot.unjudged"] = json.dumps(classifier.single_group_classes_.tolist(), ensure_ascii=False)
    if can_reject and classifier.coverage_ is not None:
        metadata["anyshot.threshold"] = repr(float(classifier.threshold_))
    if backbone is not None:
        metadata |= onnx_metadata(backbone, "vectors") | {"anyshot.pictures": _describe_preparation(backbone)}
    return metadata


def _describe_preparation(backbone: Embedder) -> str:
    """Return how a picture is prepared before it goes in, in words."""
    colours = "RGB" if backbone.channels == 3 else "grey"
    larger = round(backbone.side * backbone.margin)
    return (
        f"Turned upright as its EXIF says, transparent parts white, {colours}, the shorter side resized "
        f"({backbone.resample}, antialiased) to {larger}, the central {backbone.side}x{backbone.side} of that; "
        'float32 from 0 to 255, "image channel height width". What is not larger than that is resized to it at once.'
    )


def _trace(network: nn.Module, inputs: tuple[Tensor, ...], dynamic: Any, names: list[str], outputs: list[str]) -> Any:
    """Return a network as an ONNX model; `dynamic` names the axes whose size is free."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The exporter warns about its own internals.
        for exporter in ("torch.onnx", "onnxscript"):
            logging.getLogger(exporter).setLevel(logging.ERROR)
        about: dict[str, Any] = {"dynamic_shapes": dynamic, "input_names": names, "output_names": outputs}
        try:
            program = torch.onnx.export(network, inputs, dynamo=True, opset_version=OPSET, verbose=False, **about)
        except torch.onnx.OnnxExporterError as error:  # A user's own network may not be exportable.
            why = first_line(error.__cause__ or error).rstrip(".")
            raise BadInput(f"torch cannot write this network as ONNX ({why}).") from None
    assert program is not None
    return program.model_proto


def describe_ports(path: Path) -> str:
    """Return the names of the inputs and outputs of an ONNX file in words, and whether a classifier cannot reject."""
    import onnx

    model = onnx.load(path)
    inputs, outputs = (", ".join(port.name for port in ports) for ports in (model.graph.input, model.graph.output))
    rejects = "prototypes" not in inputs or any(one.key == "anyshot.threshold" for one in model.metadata_props)
    return f"{inputs} in; {outputs} out" + ("" if rejects else "; no threshold, so that nothing is none of these")


def _write(model: Any, path: Path) -> None:
    """Check an ONNX model and write it."""
    import onnx

    onnx.checker.check_model(model)
    with atomic_write(path) as temporary:
        onnx.save(model, temporary)
