# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint types clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"sadih_dask needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## Learn codes for scikit-learn's handwritten digits and report retrieval quality
	$(BIN)/sadih demo

test: lint types ## Lint, check types and run every test
	$(BIN)/python -m pytest -n auto

lint: $(READY) ## Format and lint check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## Strict type check
	$(BIN)/mypy

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
