"""Contact sheets: the pictures of a split, one row per class; and pairs of repeated pictures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from anyshot.data.frames import Frames
from anyshot.data.store import StoreSplit
from anyshot.files import atomic_write

ROWS, COLUMNS = 24, 12  # classes and images per class that are drawn at most
TILE, GAP, NAMES = 64, 2, 150  # pixels of a picture, between pictures, and of the column of names
MAX_NAME = 22  # characters of a name that fit into its column
MAX_PAIRS = 60  # pairs that are drawn at most


def draw_sheet(part: StoreSplit, title: str, path: Path) -> None:
    """Draw classes and images at even steps through a split, at most ROWS by COLUMNS."""
    classes, counts = _even_steps(len(part.class_names), ROWS), part.counts.tolist()
    starts = [0, *accumulate(counts)]
    title = f"{title}: {len(part.class_names)} classes, {len(part.items)} images"
    with _open_sheet(path, NAMES + COLUMNS * (TILE + GAP), len(classes), title) as (sheet, draw):
        for row, class_ in enumerate(classes):
            top = 24 + row * (TILE + GAP)
            name = _shorten(" ".join(part.class_names[class_].split()))
            draw.multiline_text((6, top + 20), f"{name}\n{counts[class_]} images", "black")
            for column, index in enumerate(_even_steps(counts[class_], COLUMNS)):
                tile = _make_tile(np.asarray(part.items[starts[class_] + index]))
                sheet.paste(tile, (NAMES + column * (TILE + GAP), top))


def draw_pairs(
    items: np.ndarray | Frames, pairs: Sequence[Sequence[int]], names: Sequence[Sequence[str]], title: str, path: Path
) -> None:
    """Draw the first MAX_PAIRS pairs, two pictures a row with their names."""
    shown = pairs[:MAX_PAIRS]
    with _open_sheet(path, 2 * (TILE + GAP) + 4 * NAMES, len(shown), f"{title}: {len(pairs)} pairs") as (sheet, draw):
        for row, (pair, pair_names) in enumerate(zip(shown, names, strict=False)):
            top = 24 + row * (TILE + GAP)
            for column, index in enumerate(pair):
                sheet.paste(_make_tile(np.asarray(items[index])), (column * (TILE + GAP), top))
            draw.multiline_text((2 * (TILE + GAP) + 6, top + 16), "\n".join(pair_names), "black")


@contextmanager
def _open_sheet(path: Path, width: int, rows: int, title: str) -> Iterator[tuple[Image.Image, ImageDraw.ImageDraw]]:
    """Yield a white sheet with a title and room for so many rows, to be drawn on; it is written in the end."""
    sheet = Image.new("RGB", (width, 24 + rows * (TILE + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.font = ImageFont.load_default(11)
    draw.text((6, 5), title, "black")
    yield sheet, draw
    with atomic_write(path) as aside:
        sheet.save(aside, "PNG")


def _even_steps(many: int, most: int) -> list[int]:
    return [int(index) for index in np.linspace(0, many - 1, min(many, most)).round()]


def to_picture(image: np.ndarray) -> Image.Image:
    """Return an image, grey or in colour, as a picture in colour."""
    return Image.fromarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def _make_tile(image: np.ndarray) -> Image.Image:
    return ImageOps.fit(to_picture(image), (TILE, TILE), Image.Resampling.BICUBIC)


def _shorten(name: str) -> str:
    """Shorten a name in the middle to about the width of its column."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME // 2]}…{name[-MAX_NAME // 2 :]}"
