"""Pages from templates, HTML or Markdown."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill_template(template: Path, **values: Any) -> str:
    """A page; in HTML what is not said to be such is escaped, and a value that the template lacks is an error.

    Args:
        template: The file of the template, for Jinja; what it is tells its ending.
        values: What it asks for, by name.
    """
    how: dict[str, Any] = {"autoescape": template.suffix == ".html", "trim_blocks": True, "lstrip_blocks": True}
    pages = Environment(loader=FileSystemLoader(template.parent), undefined=StrictUndefined, **how)
    return pages.get_template(template.name).render(values)
