# Everything runs in .venv, which is made on first use and kept up to date with pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check format clean

demo: .venv/.installed  ## train privately on the data set that ships with scikit-learn
	$(BIN)/tacit train examples/digits.toml

test: check  ## every check: format, lint, types, tests
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n auto

check: .venv/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed-test  ## write the format that `make check` asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tacit needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing tacit into .venv (once; PyTorch is large)"
	$(PIP) --editable .
	@touch $@

.venv/.installed-test: .venv/.installed
	@echo "installing the test tools into .venv (once)"
	$(PIP) --editable '.[test]'
	@touch $@
