"""Step: which examples are there twice, and which of these under two labels."""

from dataclasses import dataclass
from typing import Any

from anyshot.inspect.case import AdviceCase
from anyshot.inspect.copies import find_copies
from anyshot.inspect.likeness import PictureSketch
from anyshot.inspect.sections import Section, Table, picture_cell
from anyshot.progress import scale_progress
from anyshot.text import count_noun

PROGRESS = 0.3  # share of the time of all advice, roughly
MOST_LISTED = 40  # pairs in the table; all are in the JSON


@dataclass(frozen=True)
class Duplicates:
    """Pairs of examples that are one."""

    duplicates: list[dict[str, Any]]
    """Pairs (one, other) with their likeness; those under two labels are a conflict, and come first."""
    section: Section

    @property
    def conflicts(self) -> int:
        """Pairs under two labels, one of which is wrong."""
        return sum(row["conflict"] for row in self.duplicates)


def find_duplicates(case: AdviceCase) -> Duplicates:
    """Find examples that are there twice, by features and, where there are pictures, by these."""
    picture = case.options.get("picture")
    sketch = None if picture is None else lambda image: PictureSketch.from_image(picture(image))
    pairs = find_copies(case.unit_vectors, case.labels, sketch, scale_progress(case.progress, PROGRESS))
    rows = [
        {
            "one": case.describe(one),
            "other": case.describe(other),
            "likeness": likeness,
            "conflict": bool(case.labels[one] != case.labels[other]),
        }
        for one, other, likeness in pairs
    ]
    rows.sort(key=lambda row: not row["conflict"])
    return Duplicates(rows, _describe(rows, has_pictures=picture is not None))


def _describe(rows: list[dict[str, Any]], *, has_pictures: bool) -> Section:
    title = "The same example twice"
    if not rows:
        return Section(title, ["No example is found twice."])
    kinds = ", a copy (cropped, turned, brighter) or the same scene a moment later" if has_pictures else ""
    sentences = [f"{count_noun(len(rows), 'pair')} of examples {'is' if len(rows) == 1 else 'are'} one{kinds}."]
    if conflicts := sum(row["conflict"] for row in rows):
        sentences.append(
            f"{conflicts} of them {'has' if conflicts == 1 else 'have'} two labels: a conflict, one of which is wrong."
        )
    listed = [
        [
            picture_cell(row["one"], row["other"]["label"] if row["conflict"] else ""),
            picture_cell(row["other"], row["one"]["label"] if row["conflict"] else ""),
            f"{row['one']['label']} or {row['other']['label']}?" if row["conflict"] else row["one"]["label"],
            f"{row['likeness']:.0%}",
        ]
        for row in rows[:MOST_LISTED]
    ]
    return Section(title, sentences, [Table("", ["one", "other", "label", "alike"], listed)])
