"""The command line: one function a verb, each importing what it needs when it runs, so that --help answers at once."""

import sys

from tyro.extras import SubcommandApp

from anyshot.errors import BadInput

app = SubcommandApp()


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
