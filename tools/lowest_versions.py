"""Print the lowest declared version of each dependency, as constraints for pip (`make test-lowest`).

torch is left out: constraints.txt pins it.
"""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("onnx", "serve", "parquet")  # of which tests need something
FRAMES = ("pandas", "polars")  # of the extra dev: a scikit-learn of some age does not know frames that are much newer


def list_lowest() -> list[str]:
    """Return a pin such as `numpy==1.26` for each dependency, and for those of the extras that tests need."""
    declared = [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra])]
    declared += [one for one in PROJECT["optional-dependencies"]["dev"] if one.startswith(FRAMES)]
    bounds = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", one) for one in declared]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"]


if __name__ == "__main__":
    print("\n".join(list_lowest()))
