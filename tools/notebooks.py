"""Run the notebooks of docs/ anew and keep what they show: python tools/notebooks.py [photos study head]"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with what it shows when it runs in this folder."""
    book = nbformat.read(path, as_version=4)
    options = {"timeout": 600, "record_timing": False, "coalesce_streams": True}  # what is printed is one text a cell
    NotebookClient(book, kernel_name="python3", resources={"metadata": {"path": str(folder)}}, **options).execute()
    for key in set(book.metadata["language_info"]) - {"name"}:  # no word of the machine's own Python
        del book.metadata["language_info"][key]
    return book


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where `anyshot` is
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if path.stem in (sys.argv[1:] or [path.stem]):
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(run(path, Path(folder)), path)
            print(path.name)


if __name__ == "__main__":
    main()
