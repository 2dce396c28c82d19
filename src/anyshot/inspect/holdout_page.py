"""What a test found, as a page that stands alone: the numbers, every class, and the mistakes with their pictures."""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

from anyshot.inspect.holdout import SHOWN, HoldoutResult, summary_lines
from anyshot.show.pages import fill_template


def as_html(result: HoldoutResult, pictures: Mapping[int, bytes], title: str) -> str:
    """The page; `pictures` are small JPEGs of mistakes, by their place."""
    many = len(result.mistakes)
    page = fill_template(
        Path(__file__).with_name("test.html"),
        title=title,
        result=result,
        lines=summary_lines(result),
        classes=sorted(result.classes, key=lambda one: (one.recall[0], one.name)),
        mistakes=result.mistakes[:SHOWN],
        more=f" ({SHOWN} of {many}; all are in test.json)" if many > SHOWN else "",
        pictures={place: b64encode(jpeg).decode() for place, jpeg in pictures.items()},
        percent="{:.1%}".format,
    )
    return page + "\n"
