"""Pages from templates, HTML or Markdown."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape


def fill_template(template: Path, **values: Any) -> str:
    """Fill a Jinja template; values are escaped in HTML, and a value that is missing is an error.

    Args:
        template: The file of the template; its ending says whether it is HTML.
        values: The values that it uses, by name.
    """
    options: dict[str, Any] = {"autoescape": template.suffix == ".html", "trim_blocks": True, "lstrip_blocks": True}
    pages = Environment(loader=FileSystemLoader(template.parent), undefined=StrictUndefined, **options)
    pages.filters["code"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    return pages.get_template(template.name).render(values)
