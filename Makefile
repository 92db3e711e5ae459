# Every command of the project; `make` lists them. A fresh machine needs python3 (3.11 or newer, with venv) and make: each
# command below first sees to .venv itself.
#
#   make test PYTEST_ARGS="-k sage -x"    arguments for pytest
#   make test JOBS=0                      tests in one process (JOBS is the number of worker processes)
#   make setup PYTHON=python3.13          the interpreter that .venv is made with

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := .venv-oldest
OLDEST_EXTRAS := train report study attacks onnx timm torchvision lightning transformers
UV := $(BIN)/uv
UV_PIN := $(shell sed -n 's/^uv==\([^ ]*\).*/uv==\1/p' requirements/dev.txt)
# Worker processes and the threads of torch must not compete for the same cores. A file's tests stay together: the blocks of a page go on from
# those before them.
PYTEST := -m pytest $(if $(filter-out 0,$(JOBS)),-n $(JOBS) --dist loadfile) -m
ONE_THREAD := $(if $(filter-out 0 1,$(JOBS)),OMP_NUM_THREADS=1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-oldest lint format types imports docs study-page wheel-test check requirements clean

help:  ## List the commands
	@awk -F ':.*##[ ]*' '/^[a-z-]+:.*##/ { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv with the pinned packages, and mixsage in it

$(READY): requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "mixsage: there is no $(PYTHON); install Python 3.11 or newer, or name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mixsage: needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1); name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "mixsage: $(PYTHON) has no venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV): once, and again when the pins change. On Linux, torch brings about 3 GB of CUDA libraries."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(UV_PIN)'
	@$(UV) pip install --python $(BIN)/python --requirements requirements/dev.txt
	@$(UV) pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## Train a small network with and without SAGE, and draw what each method does
	$(BIN)/python examples/demo.py

test: $(READY)  ## Run the tests, without the slow ones
	$(ONE_THREAD) $(BIN)/python $(PYTEST) "not slow" $(PYTEST_ARGS)

test-all: $(READY)  ## Run all tests
	$(ONE_THREAD) $(BIN)/python $(PYTEST) "" $(PYTEST_ARGS)

test-oldest: $(READY)  ## Run the tests with the oldest versions of all that pyproject.toml names
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(OLDEST)
	@$(UV) pip install --python $(OLDEST)/bin/python --requirements requirements/oldest.txt
	@$(UV) pip install --python $(OLDEST)/bin/python --quiet --no-deps --editable .
	$(ONE_THREAD) $(OLDEST)/bin/python $(PYTEST) "not slow" $(PYTEST_ARGS)

lint: $(READY)  ## Check rules and format of the code
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: $(READY)  ## Mend what `lint` can mend by itself
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: $(READY)  ## Check types
	$(BIN)/python -m mypy

imports: $(READY)  ## Check that imports between the layers go one way
	$(BIN)/lint-imports --no-logo

docs: $(READY)  ## Build the documentation into site/
	@if [ -f mkdocs.yml ]; then NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict; else echo "There is no mkdocs.yml: nothing to build."; fi

study-page: $(READY)  ## Write the small study's page and table anew from its records
	$(BIN)/python tools/study_page.py

# The tests lie in the source archive too. Without its src folder, only the installed wheel can answer `import mixsage`.
wheel-test: $(READY)  ## Build archive and wheel, and test the wheel alone in a clean environment
	@set -eu; unset PYTHONPATH; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	$(BIN)/python -m build --no-isolation --outdir "$$scratch/dist" .; \
	mkdir "$$scratch/project"; \
	tar -xzf "$$scratch"/dist/*.tar.gz -C "$$scratch/project" --strip-components=1; \
	rm -r "$$scratch/project/src"; \
	$(UV) venv --quiet --python $(BIN)/python "$$scratch/venv"; \
	$(UV) pip install --quiet --python "$$scratch/venv/bin/python" --requirements requirements/wheel-test.txt "$$scratch"/dist/*.whl; \
	cd "$$scratch/project"; \
	"$$scratch/venv/bin/python" -c 'import mixsage, pathlib as p; home = p.Path(mixsage.__file__).parent; assert home.parent.name == "site-packages", home; assert (home / "py.typed").is_file(), "py.typed is not in the wheel"; print("testing", mixsage.__file__)'; \
	MIXSAGE_TORCH_ALONE=1 $(ONE_THREAD) "$$scratch/venv/bin/python" $(PYTEST) "not slow" $(PYTEST_ARGS)

check: lint types imports test docs wheel-test  ## Run all that the continuous integration runs

requirements: $(READY)  ## Write the pins anew from requirements/*.in (UPGRADE=1: take the newest versions)
	@for name in dev wheel-test; do \
	  UV_CUSTOM_COMPILE_COMMAND="make requirements" $(UV) pip compile --quiet --no-annotate --universal --python-version 3.11 \
	    --fork-strategy fewest $(if $(UPGRADE),--upgrade) $$([ $$name = dev ] || echo --constraints requirements/dev.txt) \
	    --output-file requirements/$$name.txt requirements/$$name.in || exit; \
	done
	@UV_CUSTOM_COMPILE_COMMAND="make requirements" $(UV) pip compile --quiet --no-annotate --universal --python-version 3.11 \
	  --fork-strategy fewest --resolution lowest-direct $(OLDEST_EXTRAS:%=--extra %) \
	  --output-file requirements/oldest.txt pyproject.toml requirements/oldest.in

clean:  ## Remove what builds and checks leave behind; .venv stays
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
