# One entry for everything. `make test` needs Python and make only: it makes its own environment in .venv.
#   make test      install what tests need into $(VENV), then lint, types, tests
#   make check     the same without installing: uses the python in $(BIN)
#   make test-long   what takes too long for each change: tests on a large scale, and random programs for MINUTES from SEED
PYTHON ?= python3
VENV ?= .venv
BIN ?= $(VENV)/bin
WORKERS ?= 2
PYTEST_ARGS ?=
MINUTES ?= 60
FUZZ_ARGS ?= $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES)
STAMP := $(VENV)/.spirograd-test

.PHONY: validate test check lint types tests test-long docs bench format demo clean

test: $(STAMP)
	@$(MAKE) --no-print-directory check

check: lint types tests

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	@touch $@

lint:
	$(BIN)/python -m ruff check .

types:
	$(BIN)/python -m mypy

# The order of imports between packages is among the tests: tests/unit/test_import_order.py.
tests:
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# FUZZ_ARGS="--resume --minutes 60" goes on where the last run ended.
test-long:
	$(BIN)/python -m pytest -n $(WORKERS) --long $(PYTEST_ARGS)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

# Regenerate the generated page, then run every Python block of the documentation.
docs:
	$(BIN)/python tools/gen_ops_doc.py
	$(BIN)/python -m pytest tests/docs

bench:
	$(BIN)/python -m benchmarks

format:
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

validate:
	$(BIN)/python -m validation

demo:
	$(BIN)/python -m spirograd demo

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spirograd_demo spirograd_dumps pictures
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
