"""The public API as type checkers see it: mypy reads this file (see pyproject.toml), and test_public.py runs it."""

from pathlib import Path
from typing import assert_type

import anyshot


def check_types(folder: Path, features: list[list[float]], labels: list[str]) -> None:
    """Use public names; mypy fails where it takes one for `Any`, because then an ignored error below is no error."""
    assert_type(anyshot.list_heads(), list[str])
    assert_type(anyshot.list_backbones(), list[str])
    assert_type(anyshot.list_readouts(anyshot.BUILTIN), list[str])
    assert_type(anyshot.BUILTIN, anyshot.Registry)
    assert_type(anyshot.BUILTIN.head("proto"), anyshot.Head)
    classifier = anyshot.FewShotClassifier("proto").fit(features, labels)
    assert_type(classifier, anyshot.FewShotClassifier)
    classifier.save(folder / "classifier")
    classifier.save(str(folder / "classifier"))
    assert_type(anyshot.FewShotClassifier.load(folder / "classifier"), anyshot.FewShotClassifier)
    assert_type(anyshot.Protocol(shots=(1, 2)).shots, tuple[int, ...])
    anyshot.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def open_or_none(folder: Path) -> anyshot.FewShotClassifier | None:
    """Catch a missing file by the standard exception it stands for."""
    try:
        return anyshot.FewShotClassifier.load(folder)
    except FileNotFoundError:
        return None
