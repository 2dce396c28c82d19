"""Classifiers as ONNX files: features (or images) and prototypes in, logits and vectors out.

The prototypes are an input with a default, so the number of classes is free: average the `vectors` that the file itself
gives for the examples of a new class and append the mean, and where the head looks at the number of examples, that to
`counts`. The file refines the prototypes; only FRN's ridge has no operator in ONNX, so its prototypes go in refined, as
the default has them.

The metadata say all that else is needed:

    anyshot.classes     the names of the classes as JSON, in the order of the logits
    anyshot.threshold   what is below is none of these: the largest logit, or `evidence` where the file has that output
    anyshot.unjudged    names of classes whose images are never rejected, as JSON: their examples are all one group
    anyshot.pictures    what pictures are before they go in, in words; numbers are in anyshot.side, margin, resample,
                        mean and deviation (see `anyshot.models.onnx_backbone`)
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
    """The law in the precision of the features."""

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
        bound = BoundHead(self.head, parameters)
        refined = prototypes if counts is None else self.head.refined(prototypes, counts, parameters)
        logits = self.scale * bound.score(bound.transform(vectors), refined)
        if self.head.estimator is None or counts is None:
            return logits, vectors
        evidence = self.scale * bound.evidence(vectors, prototypes, counts)
        return logits, vectors, evidence.gather(1, logits.argmax(1, keepdim=True))[:, 0]


def export_backbone(backbone: Embedder, path: Path) -> None:
    """Write an embedder as a file that is one itself, on pixels from 0 to 255 "image channel side side"."""
    with as_bad_input(ImportError, MISSING):
        import onnx
    network, example = pixel_network(backbone)
    model = _traced(network.eval(), (example,), ({0: torch.export.Dim("image")},), ["images"], ["features"])
    onnx.helper.set_model_props(
        model, {"library": "anyshot", "backbone": str(backbone.about["backbone"])} | onnx_metadata(backbone, "features")
    )
    _write(model, path)


def pixel_network(backbone: Embedder) -> tuple[nn.Module, Tensor]:
    """The network of an embedder on pixels from 0 to 255, and a batch of its input."""
    if backbone.make_pixel_network is None:
        kind = "an ONNX file" if backbone.file is not None else "a function"
        raise BadInput(f"a backbone that is {kind} cannot be exported; export the classifier of its features.")
    return backbone.make_pixel_network(), torch.zeros(3, backbone.channels, backbone.side, backbone.side)


def export_onnx(classifier: FewShotClassifier, path: Path, backbone: Embedder | None = None) -> None:
    """Write the classifier, with the backbone before it where there is one."""
    with as_bad_input(ImportError, MISSING):
        import onnx
    head, support = classifier.head_.head, classifier.support_
    refines = head.refine is not None and head.has_onnx
    means = torch.from_numpy(support.means)
    stored = {"prototypes": (means if refines else classifier.prototypes_).float()}
    if refines:
        stored["counts"] = torch.from_numpy(support.counts.copy())
    alone = None, torch.zeros(3, classifier.n_features_in_)
    network, example = alone if backbone is None else pixel_network(backbone)
    graph = _Graph(classifier, network).eval()
    way = torch.export.Dim("way", min=1)
    free = {"inputs": {0: torch.export.Dim("image")}, **{name: {0: way} for name in stored}}
    # Two or more of everything while tracing: a size of one would be taken for a constant.
    sample = [value if len(value) > 1 else torch.cat([value] * 3) for value in stored.values()]
    names = ["features" if backbone is None else "images", *stored]
    has_evidence = head.estimator is not None and refines
    outputs = ["logits", "vectors", *(["evidence"] if has_evidence else [])]
    model = _traced(graph, (example, *sample), free, names, outputs)
    # A value of the same name makes the input optional.
    for name, value in stored.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
    words = {"classes": "\n".join(map(str, classifier.classes_)), "head": classifier.head, "library": "anyshot"}
    words["anyshot.classes"] = json.dumps(classifier.classes_.tolist(), ensure_ascii=False)
    words["anyshot.unjudged"] = json.dumps(classifier.single_group_classes_.tolist(), ensure_ascii=False)
    if has_evidence or head.estimator is None:
        words |= _threshold(classifier)
    if backbone is not None:
        words |= onnx_metadata(backbone, "vectors") | {"anyshot.pictures": _pictures(backbone)}
    onnx.helper.set_model_props(model, words)
    _write(model, path)


def _threshold(classifier: FewShotClassifier) -> dict[str, str]:
    """Return the evidence below which an image is of none of the classes, where it is known."""
    coverage = classifier.coverage_
    return {} if coverage is None else {"anyshot.threshold": repr(float(coverage.threshold))}


def _pictures(backbone: Embedder) -> str:
    """What has to be done to a picture before it goes in, in words."""
    colours = "RGB" if backbone.channels == 3 else "grey"
    larger = round(backbone.side * backbone.margin)
    return (
        f"Turned upright as its EXIF says, transparent parts white, {colours}, the shorter side resized "
        f"({backbone.resample}, antialiased) to {larger}, the central {backbone.side}x{backbone.side} of that; "
        'float32 from 0 to 255, "image channel height width". What is not larger than that is resized to it at once.'
    )


def _traced(network: nn.Module, inputs: tuple[Tensor, ...], free: Any, names: list[str], outputs: list[str]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        for exporter in ("torch.onnx", "onnxscript"):
            logging.getLogger(exporter).setLevel(logging.ERROR)
        about: dict[str, Any] = {"dynamic_shapes": free, "input_names": names, "output_names": outputs}
        try:
            program = torch.onnx.export(network, inputs, dynamo=True, opset_version=OPSET, verbose=False, **about)
        except torch.onnx.OnnxExporterError as error:  # as of networks that others have written
            why = first_line(error.__cause__ or error).rstrip(".")
            raise BadInput(f"torch cannot write this network as ONNX ({why}).") from None
    assert program is not None
    return program.model_proto


def _write(model: Any, path: Path) -> None:
    import onnx

    onnx.checker.check_model(model)
    with atomic_write(path) as aside:
        onnx.save(model, aside)
