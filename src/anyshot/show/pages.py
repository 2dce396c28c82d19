"""Pages from templates."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill(template: Path, **values: Any) -> str:
    """A page: what is not said to be HTML is escaped, and a value that the template lacks is an error.

    Args:
        template: The file of the template, for Jinja.
        values: What it asks for, by name.
    """
    files = FileSystemLoader(template.parent)
    pages = Environment(loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return pages.get_template(template.name).render(values)
