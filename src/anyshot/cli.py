"""The command line: one function a verb, each importing what it needs when it runs, so that --help answers at once."""

import sys
from pathlib import Path
from typing import Annotated

import tyro
from tyro.extras import SubcommandApp

from anyshot.errors import BadInput

app = SubcommandApp()


@app.command
def study(
    name: Annotated[str, tyro.conf.Positional],
    /,
    heads: tuple[str, ...] = (),
    only: str = "",
    out: Path | None = None,
    data: Path = Path("data"),
    workers: int = 0,
) -> None:
    """Train and test the models of a study, as far as they are missing, and report.

    Args:
        name: A study of the package (quick, ...) or the path of a Python file with a function study(heads).
        heads: Heads instead of the study's own choice; 'all' for every head.
        only: Only models whose data/backbone/head contains this.
        out: Folder of results; runs/NAME by default. What is done there is skipped.
        data: Folder of stores.
        workers: Processes side by side; one a core by default.
    """
    from anyshot.report import summary
    from anyshot.study import Source, find_study, run_study

    path = find_study(name)
    folder = out or Path("runs") / path.stem
    run_study(Source(path, heads or None), folder, data, only, workers)
    print(summary(folder))


def main() -> None:
    """Run a verb; bad input is one sentence and exit code 2, never a traceback."""
    try:
        app.cli(prog="anyshot", description="Few-shot image classification that holds at any shot.")
    except BadInput as error:
        print(f"anyshot: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("anyshot: interrupted; the same command goes on where it stopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
