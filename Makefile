# Everything runs in .venv, which is made on first use and kept up to date with pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin
# Python compiles what is imported when it is: all that is installed would take longer than to install it.
INSTALL := --disable-pip-version-check install --quiet --no-compile
PIP := $(BIN)/python -m pip $(INSTALL) --constraint constraints.txt
COMMA := ,

# No fewer processes than cores, so that a thread more in each only waits.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal
# Some tests wait, and those of processes for a third of their time: of these more share a core.
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
SOME := $(shell expr $(CORES) + 1)
BOTH := $(shell expr $(CORES) + 2)
MANY := $(shell expr 2 \* $(CORES) + 2)
# With TIERS="not nightly and not host", `make test` runs what `make test-rest` does as well: one
# session collects once.
TIERS :=
# With HOSTS="host and not slow", `make test-hosts` leaves out NVFlare's POC, which a busy machine
# upsets, and Ray's actors.
HOSTS := host
PRINT_SITE := import sysconfig; print(sysconfig.get_path("purelib"))

.PHONY: demo test test-rest test-hosts test-nightly test-all coverage check format docs bench bench-quick clean

demo: .venv/.installed  ## train privately on the data set that ships with scikit-learn
	$(BIN)/tacit train examples/digits.toml

test: check  ## every check: format, lint, types, and the tests that are quick
	$(PYTEST) -n $(if $(TIERS),$(BOTH) -m "$(TIERS)",$(SOME))

test-rest: .venv/.installed-test  ## what `make test` leaves out: real processes, and what takes long
	$(PYTEST) -n $(MANY) -m "(process or slow) and not nightly and not host" \
		$$(grep -rlE 'mark\.(slow|process)' --include='test_*.py' tests)

test-hosts: .venv/.installed-test .venv-peers/.installed .venv-nvflare/.installed  ## tacit inside others, in their environments
	$(PYTEST) -n $(CORES) -m "$(HOSTS)" tests/hosts

test-nightly: .venv/.installed-test  ## more of the same: longer storms, all pairs of options, more examples
	HYPOTHESIS_PROFILE=night $(PYTEST) -n auto -m "(nightly or property) and not host"

test-all: check .venv-peers/.installed .venv-nvflare/.installed  ## every check, with all tests
	$(PYTEST) -n auto -m ""

# A part of them with, for example, `make coverage TESTS=tests/privacy`.
coverage: .venv/.installed-test  ## quick and slow tests, and which lines of src they never run
	@mkdir -p build
	$(PYTEST) -n auto -m "not process and not nightly and not host" --cov --cov-report=term-missing $(TESTS)

check: .venv/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed-test  ## write the format that `make check` asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed-docs  ## the site of the documentation, into build/site; a lost link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html in a browser"

bench: .venv/.installed .venv-peers/.installed  ## how fast tacit is, beside its peers; leave the machine alone meanwhile
	$(BIN)/python benchmarks/speed --out runs/speed.json

bench-quick: .venv/.installed .venv-peers/.installed  ## the same, tiny: shows that contenders run and agree
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed --quick --out runs/speed-quick.json
	$(BIN)/python benchmarks/tables.py --quick
	$(BIN)/python benchmarks/device --device cpu --quick
	$(BIN)/python benchmarks/scale.py --quick

clean:
	rm -rf .venv .venv-nvflare .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build/site

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tacit needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing tacit into .venv (once; PyTorch is large)"
	@# Of that name there is a stranger's project, and this one was called so once: neither may stay.
	@$(BIN)/python -m pip --quiet uninstall --yes tacit 2>/dev/null || true
	$(PIP) --editable .
	@touch $@

# What is optional: .venv/.installed-test, .venv/.installed-docs, or test,docs at once, which is quicker.
.venv/.installed-%: .venv/.installed
	@echo "installing what is for $* into .venv (once)"
	$(PIP) --editable '.[$*]'
	@touch $(addprefix .venv/.installed-,$(subst $(COMMA), ,$*))

# An environment beside .venv, whose packages and whose tacit it finds by a path that comes after its
# own. It has no pip either: what it needs is listed to the last package, so that none is looked for.
define BESIDE
	$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -c '$(PRINT_SITE)' | sed 's/.*/import site; site.addsitedir("&")/' \
		> "$$($(@D)/bin/python -c '$(PRINT_SITE)')/tacit-environment.pth"
	$(BIN)/python -m pip --python $(@D)/bin/python $(INSTALL) --no-deps --requirement $<
	@touch $@
endef

# Opacus, pfl and Flower, for `make bench` and the tests of tacit inside Flower. They need versions of
# their own of some packages.
.venv-peers/.installed: benchmarks/speed/peers.txt .venv/.installed
	@echo "installing what tacit is compared with into .venv-peers (once; Ray is large)"
	$(BESIDE)

# NVFlare, for the tests of tacit inside it.
.venv-nvflare/.installed: tests/hosts/nvflare.txt .venv/.installed
	@echo "installing NVFlare into .venv-nvflare (once)"
	$(BESIDE)
