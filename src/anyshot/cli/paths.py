"""Check the paths that a verb is given before it imports torch, which takes seconds."""

from pathlib import Path

from anyshot.errors import BadInput
from anyshot.files import check_classifier, check_source, find_builtin_models


def check_paths(classifier: Path | None = None, *sources: Path | None) -> None:
    """Raise BadInput where a folder holds no classifier, or nothing is at the path of a source; None is no path."""
    if classifier is not None:
        check_classifier(classifier)
    for source in sources:
        if source is not None:
            check_source(source)


def check_model(name: str) -> None:
    """Raise BadInput for a name that is neither a path nor that of a network that can be loaded."""
    is_network = ":" in name or name == "efficientnet-lite0" or name in find_builtin_models()
    is_network |= name.lower().endswith(".onnx")
    if not is_network and not Path(name).exists():
        raise BadInput(
            f"there is neither a classifier nor a trained model {name}: name a folder that `anyshot fit` made, or a "
            "network, such as efficientnet-lite0."
        )
