"""The model card of a saved classifier: what its fitted state knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyshot.classify.classifier import FewShotClassifier
from anyshot.files import write_text
from anyshot.show.pages import fill_template

LISTED = 1000  # classes in the card


def write_card(classifier: FewShotClassifier, path: Path, about: Mapping[str, Any]) -> None:
    """Write the model card.

    Args:
        classifier: The classifier. Of very many classes only what was computed before is stated.
        path: The file.
        about: May name the backbone, where it classifies pictures, its data and its sensitivity.
    """
    state, labels = classifier.state_, classifier.classes_
    counts = state.support.counts[state.order[:LISTED]]
    is_measured = not state.is_large
    card = fill_template(
        Path(__file__).with_name("card.md"),
        classifier=classifier,
        about=about,
        of_pictures="backbone" in about,
        many=len(labels),
        rows=[(_cell(label), many) for label, many in zip(labels[:LISTED], counts, strict=True)],
        is_measured=is_measured,
        calibration=_calibration(classifier) if is_measured else "",
        unjudged=[_cell(label) for label in classifier.single_group_classes_[:LISTED]] if is_measured else [],
        coverage=classifier.coverage_ if is_measured or "coverage" in state.__dict__ else None,
        percent="{:.1%}".format,
    )
    write_text(path, card)


def _calibration(classifier: FewShotClassifier) -> str:
    if not classifier.calibrated_:
        return f"They are not calibrated: the scale of the logits, {classifier.scale_:.4g}, was given or guessed."
    error = f"the expected calibration error on them is {classifier.support_calibration_error():.1%}."
    return f"The scale of the logits, {classifier.scale_:.4g}, is fitted by leaving examples out; {error}"


def _cell(label: Any) -> str:
    """Return a label inside a table of Markdown, whatever is in it."""
    return "".join(f"&#{ord(c)};" if c in "|<>&`*_[]\\\n\r" else c for c in str(label))
