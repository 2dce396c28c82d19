"""The model card of a saved classifier."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyshot.classify.classifier import FewShotClassifier
from anyshot.files import write_text
from anyshot.show.pages import fill_template

MOST_LISTED = 1000  # classes that the card lists
EVIDENCE = "evidence for the likeliest class, which is not its logit,"


def write_card(classifier: FewShotClassifier, path: Path, about: Mapping[str, Any]) -> None:
    """Write the model card.

    Args:
        classifier: The classifier. Of very many classes only what was computed before is stated.
        path: The file.
        about: What is known of the backbone, by name, for a classifier of pictures (`Embedder.about`).
    """
    state, is_measured = classifier.state_, not classifier.state_.is_large
    single_group_classes = classifier.single_group_classes_[:MOST_LISTED] if is_measured else ()
    counts = zip(classifier.classes_[:MOST_LISTED], state.support.counts, strict=False)
    card = fill_template(
        Path(__file__).with_name("card.md"),
        classifier=classifier,
        about=about,
        has_pictures="backbone" in about,
        rows=[(_escape(label), count) for label, count in counts],
        is_measured=is_measured,
        single_group_classes=[_escape(label) for label in single_group_classes],
        coverage=classifier.coverage_ if is_measured or "coverage" in state.__dict__ else None,
        measure="best logit" if classifier.head_.head.estimator is None else EVIDENCE,
        percent="{:.1%}".format,
    )
    write_text(path, card)


def _escape(label: Any) -> str:
    """Return a label that Markdown shows as it is, in a table too."""
    return "".join(f"&#{ord(c)};" if c in "|<>&`*_[]\\\n\r" else c for c in str(label))
