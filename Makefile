# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready
ORCHESTRATORS := .venv-orchestrators

# Processes that tests start, hundreds of them, find modules compiled.
unexport PYTHONDONTWRITEBYTECODE

# Many tests wait for other processes: two at a time for every core.
AT_ONCE ?= $(shell expr 2 '*' $$(nproc 2>/dev/null || echo 1))

.DEFAULT_GOAL := help
.PHONY: help demo test docs orchestrators system image-test bench scale faults lint types clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"sadih_dask needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[report]'
	@touch $@

$(READY): $(BASE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(BASE) ## Hash scikit-learn's handwritten digits, measure retrieval, write a report
	$(BIN)/sadih run pipelines/digits.toml

docs: $(BASE) ## Build the guide and the API reference: build/docs/index.html
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --config-file pipelines/docs/mkdocs.yml

test: lint types system ## Lint, check types and run every test
	$(BIN)/python -m pytest -n $(AT_ONCE) --dist worksteal --ignore=tests/orchestrators --ignore=tests/deploy
	$(BIN)/python -m pytest tests/deploy
	$(MAKE) --no-print-directory orchestrators

$(ORCHESTRATORS)/.ready: tests/orchestrators/requirements.txt
	$(PYTHON) -m venv $(ORCHESTRATORS)
	$(ORCHESTRATORS)/bin/python -m pip install --quiet --requirement $<
	@touch $@

orchestrators: $(READY) $(ORCHESTRATORS)/.ready ## Test the adapters with Prefect, Dagster and Airflow
	$(BIN)/mypy --python-executable $(ORCHESTRATORS)/bin/python --explicit-package-bases pipelines/orchestrators
	SADIH_COMMAND=$(CURDIR)/$(BIN)/sadih $(ORCHESTRATORS)/bin/python -m pytest -n auto --dist loadfile tests/orchestrators

# What tests need of the system; only installed on Debian and as root.
SYSTEM := chromium openssl systemd munge slurmctld slurmd slurm-client faketime dataset-fashion-mnist buildah debootstrap iproute2
system:
	@missing=$$(for name in $(SYSTEM); do dpkg -s $$name >/dev/null 2>&1 || echo $$name; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	else \
	  echo "Tests that need what is missing here are skipped. To run them all, install:"; \
	  echo $$missing; \
	fi

image-test: $(READY) system ## Build the image and run it in every role; part of test, as root on Debian
	$(BIN)/python -m pytest tests/deploy/test_deploy_image.py

bench: $(READY) ## Speed and memory beside a bare floor and other libraries, as one table; some minutes
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks

scale: $(READY) ## A whole run of 2.5 and 10 million rows: stages, bytes, memory, growth; 20 GB, an hour
	$(BIN)/python -m tests.benchmarks.bench_scale $(SCALE)

faults: $(READY) ## Kill, starve, fill and damage everything on purpose; prints a table
	$(BIN)/python -m tests.faults

lint: $(READY) ## Format and lint check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## Strict type check
	$(BIN)/mypy

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(ORCHESTRATORS) .image .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
