# Each target does its own set-up in .venv; nothing else is needed but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: study test hostile clean

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

# Every bad input, a crash before every change of a file, and kills at random: some twenty minutes.
hostile: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -W ignore -m hostile

clean:
	rm -rf .venv

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
