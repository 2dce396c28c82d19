# Each target does its own set-up in .venv; nothing else is needed but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: study test test-lowest hostile clean

study: .venv/.core
	$(BIN)/anyshot study quick
	$(BIN)/anyshot study cub32 --ready
	$(BIN)/anyshot evaluate data/glyphs --model efficientnet-lite0:96 --heads proto cosine-proto --out runs/glyphs-pretrained  # seconds
	$(BIN)/anyshot report runs/quick runs/cub32-ready -o runs/report.html

test: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# The fast tests with the lowest versions that pyproject.toml declares (torch as constraints.txt pins it), in a place of
# their own.
FAST := tests/test_public.py tests/cli/test_main.py tests/cli/test_classifiers.py tests/classify/test_classifier.py tests/measure/test_evaluate.py \
        tests/test_recipe.py tests/models/test_heads.py tests/measure/test_sensitivity.py tests/show/test_figures.py tests/report/test_report.py
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tools/lowest_versions.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c .venv-lowest/lowest.txt \
	    -e ".[onnx,serve,parquet]" pytest pytest-xdist hypothesis beartype httpx pandas polars pyyaml
	.venv-lowest/bin/python -m pytest -p no:cacheprovider $(FAST)

# The promises of docs/promises.md, every bad input, a crash before every change of a file, and kills at random: an hour.
hostile: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -W ignore -m hostile

clean:
	rm -rf .venv .venv-lowest

.venv/.made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/.core: .venv/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps easyfsl tqdm  # an oracle; its own needs do not fit
	touch $@ .venv/.core
