"""Hooks of the site (mkdocs.yml): pages from outside docs/, notebooks as they were executed, and the verbs' own help.

The pages of docs/ are read in the repository too, where they link to what lies beside docs/ (`../CONTRIBUTING.md`).
In the site such files have the same path without the `..`, and links are rewritten to that.
"""

import posixpath
import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from anyshot.cli.main import APP

ROOT = Path(__file__).parents[1]
RESULTS = "results/**/README.md"
BESIDE = (
    "CITATION.cff",
    "CONTRIBUTING.md",
    RESULTS,
    "results/**/*.csv",
    "results/**/recipes.json",
    "results/**/figures/*.svg",
)
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every folder of results under the evidence."""
    evidence = next(part["Evidence"] for part in config.nav or [] if "Evidence" in part)
    for path in sorted(ROOT.glob(RESULTS)):
        evidence.append({path.parent.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside docs/, and what is made: notebooks as pages with their pictures, the verbs' help."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page, pictures = notebook(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where things are in the site."""
    uri = page.file.src_uri
    source = uri if page.file.generated_by and (ROOT / uri).is_file() else f"docs/{uri}"

    def there(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if (ROOT / target).is_dir():  # the first page in it
            target = min((path.relative_to(ROOT).as_posix() for path in (ROOT / target).rglob("*.md")), default=target)
        inside = target.removeprefix("docs/")
        if not uri.startswith("notebooks/"):  # others mean the page of a notebook
            inside = re.sub(r"\.ipynb$", ".md", inside)
        if files.get_file_from_path(inside) is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{link[3] or ''}{link[4]}"

    return LINK.sub(there, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The logo leads to the first page, not to a folder: a site on the disk has no server to find it."""
    return re.sub(r'href="(\.\.?(?:/\.\.)*)"', r'href="\1/index.html"', output)


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and the pictures it shows by name; with a link to the notebook itself."""
    exporter = MarkdownExporter()
    markdown, resources = exporter.from_notebook_node(
        nbformat.read(path, as_version=4), {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    title, _, rest = markdown.strip().partition("\n")
    return f"{title}\n\n[The notebook itself]({path.name})\n{rest}\n", resources["outputs"]


def commands() -> str:
    """The reference of every verb."""
    return APP.generate_docs(output_format="markdown", heading_level=1)
