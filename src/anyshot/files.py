"""Files appear whole or not at all: written aside, then renamed."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write a file or folder to; on success it is renamed, on failure removed."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # renaming would put a file in the place of /dev/null
        raise BadInput(f"could not write {path}: it is a device or a pipe; name a file.")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        os.replace(aside, path)
    except OSError as error:
        raise BadInput(f"could not write {path}: {error.strerror or error}.") from error
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        elif aside.exists():
            aside.unlink()


def own_studies() -> list[Path]:
    """The folders that may hold the studies that come with anyshot: installed, and in the repository."""
    package = Path(__file__).resolve().parent
    return [folder for folder in (package / "studies", package.parents[1] / "studies") if folder.is_dir()]


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is not a JSON file ({error}); was it cut short?") from None
