"""The printed numbers: as transcribed, as an ordinary table, as exact grids."""

from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anyshot.paper.rounding import Exact, parse
from anyshot.tables import GridKey, Row, read_table
from anyshot.text import group_by

TRAIN_SHOTS = (4, 8, 16, 32)
TEST_SHOTS = (1, 2, 4, 8, 16, 32)
FIRST_GRID = 9  # Tables 9 to 32 hold the 48 grids of the study; Table 4 prints two more for the old and new FRN


class Setting(NamedTuple):
    """A data set and a backbone."""

    data: str
    backbone: str

    def __str__(self) -> str:
        return f"{self.data}/{self.backbone}"


class Group(GridKey):
    """The four models (one per train shot) behind a grid."""

    @property
    def euclidean(self) -> "Group":
        """The group that the paper measures gains against: the Euclidean head, read as trained."""
        return Group(self.data, self.backbone, self.head.removeprefix("cosine-"))


SETTINGS = [Setting(data, "conv4") for data in ("cub", "mini", "meta-inat")]
SETTINGS += [Setting(data, "resnet12") for data in ("cub", "mini", "tiered")]
EUCLIDEAN = [Group(*setting, head) for head in ("proto", "feat", "frn") for setting in SETTINGS]
COSINE = [Group(*setting, f"cosine-{head}") for head in ("proto", "feat", "frn") for setting in SETTINGS]
PAIRS = list(zip(EUCLIDEAN, COSINE, strict=True))


@cache
def numbers() -> tuple[Row, ...]:
    """Return every printed number with its place; `printed` is text, shots are whole numbers or empty."""
    return tuple(read_table(Path(__file__).with_name("numbers.csv")))


def rows() -> list[Row]:
    """Return the paper's accuracies as rows of a table: 48 grids, and the old FRN (its twin is printed twice)."""
    table = []
    for row in numbers():
        if row["quantity"] == "accuracy" and (in_study(row["table"]) or row["head"] == "frn-old"):
            where = {column: row[column] for column in (*Group._fields, "train_shot", "test_shot")}
            table.append({**where, "way": 5, "episodes": 10_000, "accuracy": float(row["printed"])})
    return table


def consistency_rows() -> list[Row]:
    """Return Table 1 as rows of `anyshot experiment consistency`, in percent."""
    return [
        {column: row[column] for column in ("data", "backbone", "head", "train_shot")}
        | {"score": row["readout"], "consistency": float(row["printed"])}
        for row in find("consistency")
    ]


def in_study(table: str) -> bool:
    """Return whether a table is one of those that print the study's grids."""
    return table.startswith("Table") and int(table.split()[1]) >= FIRST_GRID


def group(row: Row) -> Group:
    """Return the group that a printed number belongs to."""
    return Group(*(row[field] for field in Group._fields))


def find(quantity: str = "", table: str = "") -> Iterator[Row]:
    """Return the printed numbers of one quantity or of all, of one place or of all."""
    return (row for row in numbers() if quantity in ("", row["quantity"]) and table in ("", row["table"]))


def text(quantity: str) -> list[str]:
    """Return a number (or several) of the text, as printed."""
    return [row["printed"] for row in find(quantity) if not row["data"]]


@cache
def exact_grids() -> dict[tuple[str, Group], Exact]:
    """Return all 50 printed grids by table and group, their cells in hundredths."""
    grids = {}
    for key, rows in group_by(find("accuracy"), lambda row: (row["table"], group(row))).items():
        in_order = sorted(rows, key=itemgetter("test_shot", "train_shot"))
        cells = np.array([int(parse(row["printed"]) * 100) for row in in_order], dtype=np.int64)
        grids[key] = Exact(cells.reshape(len(TEST_SHOTS), len(TRAIN_SHOTS)))
    return grids


@cache
def study() -> dict[Group, Exact]:
    """Return the 48 grids that the paper's study rests on."""
    return {group: grid for (table, group), grid in exact_grids().items() if in_study(table)}
