"""Pages from templates, HTML or Markdown."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill_template(template: Path, **values: Any) -> str:
    """Fill a Jinja template; values are escaped in HTML, and a value that is missing is an error.

    Args:
        template: The file of the template; its ending says whether it is HTML.
        values: The values that it uses, by name.
    """
    options: dict[str, Any] = {"autoescape": template.suffix == ".html", "trim_blocks": True, "lstrip_blocks": True}
    pages = Environment(loader=FileSystemLoader(template.parent), undefined=StrictUndefined, **options)
    return pages.get_template(template.name).render(values)
