"""Classifiers as ONNX files: features (or images) and prototypes in, logits and vectors out.

The prototypes are an input with a default, so the number of classes is free: average the `vectors` that the file itself
gives for the examples of a new class and append the mean. For FEAT the file refines the prototypes, which look at each
other; FRN's ridge has no operator in ONNX, so its prototypes go in refined, as the default has them.
"""

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from anyshot.classifier import FewShotClassifier
from anyshot.errors import BadInput
from anyshot.files import whole

OPSET = 20


class _Graph(nn.Module):
    """The law in the precision of the features."""

    basis: Tensor | None
    scale: Tensor

    def __init__(self, classifier: FewShotClassifier, backbone: nn.Module | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.embed, self.reading = classifier.embed_, classifier.reading_
        self.positions = classifier.positions_
        basis = classifier.basis_
        self.register_buffer("basis", None if basis is None else basis.float())
        self.register_buffer("scale", torch.tensor(classifier.scale_, dtype=torch.float32))
        for name, value in self.reading.parameters.items():
            self.register_buffer(f"learned_{name}", value.float())

    def forward(self, inputs: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        features = inputs.unflatten(1, (self.positions, -1)) if self.backbone is None else self.backbone(inputs)
        vectors = self.embed(features)
        if self.basis is not None:
            vectors = vectors @ self.basis
        head = self.reading.head
        if head.couples and head.refine is not None:
            learned = {name: getattr(self, f"learned_{name}") for name in self.reading.parameters}
            prototypes = head.refine(prototypes, learned, False)
        return self.scale * head.score(vectors, prototypes), vectors


def export_onnx(
    classifier: FewShotClassifier, path: Path, backbone: nn.Module | None = None, example: Tensor | None = None
) -> None:
    """Write the classifier, with the backbone before it where there is one; `example` is a batch of its input."""
    try:
        import onnx
    except ImportError:
        raise BadInput("ONNX files need the packages of an extra: pip install 'anyshot[onnx]'.") from None
    head = classifier.reading_.head
    support = classifier.support_
    means = torch.from_numpy(support.sums / support.counts[:, None])
    stored = (means if head.couples else classifier.prototypes_).float()
    if example is None:
        example = torch.zeros(3, classifier.n_features_in_)
    graph = _Graph(classifier, backbone).eval()
    free = {"inputs": {0: torch.export.Dim("image")}, "prototypes": {0: torch.export.Dim("way", min=1)}}
    # Two or more of everything while tracing: a size of one would be taken for a constant.
    sample = stored if len(stored) > 1 else stored.repeat(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            graph,
            (example, sample),
            dynamo=True,
            dynamic_shapes=free,
            opset_version=OPSET,
            verbose=False,
            input_names=["features" if backbone is None else "images", "prototypes"],
            output_names=["logits", "vectors"],
        )
    assert program is not None
    model = program.model_proto
    # A value of the same name makes the input optional.
    model.graph.initializer.append(onnx.numpy_helper.from_array(stored.numpy(), "prototypes"))
    words = {"classes": "\n".join(map(str, classifier.classes_)), "head": classifier.head, "library": "anyshot"}
    onnx.helper.set_model_props(model, words)
    onnx.checker.check_model(model)
    with whole(path) as aside:
        onnx.save(model, aside)
