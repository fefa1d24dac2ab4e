# Everything a contributor or CI runs. Needs make and Python 3.11 or newer; the rest is set up in
# .venv, exactly as requirements.lock says, and not again until that file or pyproject.toml changes.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVING := $(VENV)/.serving
JOBS ?= 3
CORE_COVERAGE := 95

# The first Python that will do; choose another with `make PYTHON=/path/to/python …`.
IS_SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python; do \
	$$python -c '$(IS_SUPPORTED)' 2>/dev/null && echo $$python && break; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: serve
serve: $(SERVING) ## Run the service on http://127.0.0.1:8000 (TORCH=cpu: with torch for the CPU alone)
	$(BIN)/grasp serve

.PHONY: demo
demo: $(SERVING) ## Train four small models and merge them on the running service
	$(BIN)/grasp demo --files demo

.PHONY: check
check: lint test rounding ## All that CI runs: lint, then test, then rounding

.PHONY: lint
lint: $(READY) ## Formatting, ruff, mypy --strict, import contracts, the client, the lock, links of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.unasync --check
	@! grep -nE '://|^ *--(index|extra|find)' $(LOCKS) \
		|| { echo "a lock names a host or a path; see docs/adr/0003"; exit 1; }
	$(BUILD_SITE)

# Its notice is about the program, not about our pages. With --quiet it would let warnings pass.
BUILD_SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs
docs: $(READY) ## Write the reference from the code, and build the documentation into build/site
	$(BIN)/python -m scripts.reference
	$(BUILD_SITE)

.PHONY: client
client: $(READY) ## Write the client that does things at once from the one that is awaited
	$(BIN)/python -m scripts.unasync

# Each process takes whole files, in the order of tests/conftest.py. Coverage is of the core and by its
# own tests: others would take twice their time if it were measured. Three processes for two cores, as
# many tests wait.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(READY) ## Tests, with the coverage of grasp_core (JOBS=3 processes)
	$(PYTEST) $(PARALLEL) -m "not proof" --cov=grasp_core --cov-fail-under=$(CORE_COVERAGE) tests/core
	$(PYTEST) $(PARALLEL) -m "not proof" --ignore=tests/core

# Kernels that no recent processor takes by itself: they round in other ways.
KERNELS ?= ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
FOLDING := $(addprefix tests/, docs/test_pages.py e2e core/test_folding.py core/test_digits.py)

.PHONY: rounding
rounding: $(READY) ## Some that train and fold, and the tutorial, as an older processor rounds
	$(KERNELS) $(PYTEST) $(PARALLEL) $(FOLDING) -k "not README and not target-data.md"

# In an environment of their own, as pip would make it for somebody who pins all that we depend on to
# the lowest version that pyproject.toml allows. Not in CI: it takes gigabytes for one answer.
LOWEST := build/lowest
.PHONY: test-lowest
test-lowest: $(READY) ## The tests of every room with the lowest versions that pyproject.toml allows
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip compile pyproject.toml $(EVERYTHING) \
		--resolution lowest-direct --quiet --output-file $(LOWEST)/requirements.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --requirements $(LOWEST)/requirements.txt --group test
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --no-build-isolation --editable .
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(JOBS) --dist loadfile $(LOWEST_TESTS)
# Without those that need schemathesis or openapi-python-client, which have bounds of their own.
LOWEST_TESTS ?= tests/core tests/registry tests/worker tests/service tests/app tests/client tests/test_cli.py \
	tests/test_tracing.py --ignore=tests/app/test_openapi.py --ignore=tests/app/test_schema_fuzz.py \
	--ignore=tests/app/test_generated_clients.py

PROOFS ?= tests
.PHONY: prove
prove: $(READY) ## Proofs of what survives faults, on PostgreSQL, Redis and S3 (LONG=1: for half an hour)
ifdef LONG
	GRASP_LONG=1 $(PYTEST) -m long --timeout 7200 -o faulthandler_timeout=7500 tests/proofs
else
	$(PYTEST) $(PARALLEL) -m "proof and not long" $(PROOFS)
endif

.PHONY: bench
bench: $(READY) ## Measure folds, uploads, downloads, the API and its followers (DATA=path for your own images)
	@set -e; for script in bench/fold_memory.py bench/fold_speed.py; do \
		echo "== $$script"; $(BIN)/python $$script $(if $(DATA),--data "$(DATA)"); done; \
	for script in bench/upload_speed.py bench/download_speed.py bench/api_start.py \
		bench/api_memory.py bench/followers.py bench/verify_cost.py; do \
		echo "== $$script"; $(BIN)/python $$script; done

.PHONY: format
format: $(READY) ## Format the code and repair what ruff can repair
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# requirements.lock is everything; the images of the Dockerfile get the parts of it that they need.
API_LOCK := requirements-api.lock
WORKER_LOCK := deploy/requirements-worker.lock
SERVE_LOCK := requirements-serve.lock
LOCKS := requirements.lock $(API_LOCK) $(WORKER_LOCK) $(SERVE_LOCK)
EVERYTHING := --extra server --extra worker --extra s3 --extra tracing --extra demo
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet

.PHONY: lock
lock: | $(BIN)/uv ## Write the locks anew from pyproject.toml (UPGRADE=1: newest versions)
	$(COMPILE) $(EVERYTHING) --group dev $(if $(UPGRADE),--upgrade) --output-file requirements.lock
	$(COMPILE) --extra server --extra s3 --extra tracing --constraints requirements.lock --output-file $(API_LOCK)
	$(COMPILE) --extra worker --extra s3 --extra tracing --constraints requirements.lock --output-file $(WORKER_LOCK)
	$(COMPILE) $(EVERYTHING) --group build --constraints requirements.lock --output-file $(SERVE_LOCK)

# Built by the locked hatchling, and so without asking anybody.
.PHONY: wheel
wheel: $(READY) ## The client and the command line as a wheel in dist/, for training environments
	$(BIN)/uv build --wheel --offline --no-build-isolation --python $(BIN)/python --out-dir dist --quiet .

.PHONY: clean
clean: ## Remove the environment, caches and build results (never .grasp, which holds data)
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache \
		.ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What serving needs, unless all is there; TORCH is one of uv's backends, such as cpu or cu128, whose
# builds of torch no lock can name: then the rest is not locked either.
$(SERVING): pyproject.toml $(SERVE_LOCK) | $(BIN)/uv
	@if [ -e $(READY) ]; then $(SET_UP_ALL); else $(SET_UP_SERVING); fi
	@touch $@

# By another name than $(MAKE), which `make -n` would run.
SET_UP_ALL = $(MAKE) --no-print-directory $(READY)
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
ifdef TORCH
SET_UP_SERVING = $(INSTALL) --torch-backend $(TORCH) hatchling '.[server,worker,s3,tracing,demo]' \
	&& $(INSTALL) --no-deps --no-build-isolation --editable .
else
SET_UP_SERVING = $(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(SERVE_LOCK) \
	&& $(INSTALL) --no-deps --no-build-isolation --editable .
endif

$(READY): pyproject.toml requirements.lock | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/uv:
	@'$(PYTHON)' -c '$(IS_SUPPORTED)' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed. Point to one with: make PYTHON=/path/to/python3.11"; \
		exit 1; }
	'$(PYTHON)' -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep -o '^uv==[^ ;]*' requirements.lock || echo uv)"
