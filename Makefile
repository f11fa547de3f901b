# One entry for everything. `make test` needs Python and make only: it makes its own environment in .venv.
#   make test      install what tests need into $(VENV), then lint, types, tests
#   make check     the same without installing: uses the python in $(BIN)
#   make environment   only install what tests need into $(VENV)
#   make docs      install what the site needs into $(DOCS_VENV), then build it into site/; any warning is an error
#   make test-long   what takes too long for each change: tests on a large scale, and random programs for MINUTES from SEED
PYTHON ?= python3
VENV ?= .venv
BIN ?= $(VENV)/bin
DOCS_VENV ?= $(VENV)-docs
WORKERS ?= 3
PYTEST_ARGS ?=
MINUTES ?= 60
FUZZ_ARGS ?= $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES)
STAMP := $(VENV)/.spirograd-test
DOCS_STAMP := $(DOCS_VENV)/.spirograd-docs

.PHONY: validate test environment check lint types tests test-long docs bench format demo clean

test: $(STAMP)
	@$(MAKE) --no-print-directory check

environment: $(STAMP)

# Types are checked on one core while the tests start; a mistake in them fails `check` at its end.
check: lint
	@$(MAKE) --no-print-directory -j2 types tests

# Python compiles what is imported, which is a small part of what is installed.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[test]"
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
	SG_TEST_OPTIMIZE=1 $(BIN)/python -m pytest -n $(WORKERS) --on cpu $(PYTEST_ARGS)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

# Its environment is its own, so that tests do without it. tests/docs runs the Python blocks of the pages.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DOCS_STAMP)
	$(DOCS_VENV)/bin/python tools/gen_ops_doc.py
	$(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet
	@if grep -rlE --include='*.html' '<(script|img|link)[^>]* (src|href)="https?://' site; then echo "these pages load from other servers"; exit 1; fi
	@echo "open site/index.html, or, for the search: $(DOCS_VENV)/bin/python -m http.server --directory site"

$(DOCS_STAMP): pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --no-compile --editable ".[docs]"
	@touch $@

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
	rm -rf .venv .venv-docs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spirograd_demo spirograd_dumps pictures
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
