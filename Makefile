# Everything a person needs to run. `make` alone lists the targets.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
PYTHONS := 3.12 3.13 3.14
# Options for `make oldest`, `newest` and `resolve`, for instance INSTALLS=--record.
INSTALLS ?=
install = $(1)/bin/python -m pip install -q --disable-pip-version-check $(PIP_ARGS)
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
SOLVED := $(sort $(wildcard notebooks/assignments/solution/*.ipynb notebooks/assignments/source/*/*.ipynb))
EXECUTE := $(BIN)/jupyter nbconvert --to notebook --execute --inplace --log-level=WARN \
  --ExecutePreprocessor.record_timing=False

# Waiting threads must not eat the core of a working one. Nothing is fetched from a model hub.
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
export PATH := $(CURDIR)/$(BIN):$(PATH)

# One thread: two workers do not fight for two cores.
long test notebooks assignments elsewhere disturbed mutants oldest newest: export OMP_NUM_THREADS := 1
# The plugin that compares notebooks, and what lets a process compute as another machine would.
long test elsewhere disturbed: export PYTHONPATH := $(CURDIR)/tests/elsewhere:$(CURDIR)/tests

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test docs mutants elsewhere disturbed long oldest newest resolve lint format notebooks \
  assignments site bench study clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## Make the virtual environment in .venv (the other targets do it when needed)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed and '$(PYTHON)' is not. Name one: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "Setting up .venv; the first time takes a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt "setuptools>=77"
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt \
	  --no-build-isolation -e ".[test,docs]"
	@touch $@

demo: $(READY) ## Watch the model act and rehearse, in the terminal
	@$(BIN)/envace demo

lab: $(READY) ## Open the notebooks in JupyterLab
	@$(BIN)/jupyter lab --notebook-dir=notebooks

test: lint docs ## Lint, documentation, unit tests, and every notebook, as this and other machines compute it
	@$(BIN)/pytest -n 2 --dist loadscope tests
	@$(BIN)/python tests/elsewhere/settings.py

elsewhere: $(READY) ## The notebooks, as this machine and others compute them, recorded
	@$(BIN)/python tests/elsewhere/settings.py --save

long: $(READY) ## The tests that take minutes, and those of chat templates that another package carries
	@$(call install,.venv) --no-deps trl==1.16.0 xinference==4.1.0
	@$(BIN)/pytest tests/test_template.py
	@$(BIN)/pytest -m long tests
	@$(BIN)/python tests/elsewhere/settings.py --full

mutants: $(READY) ## Small wrong changes of the core, one at a time: which do the tests notice?
	@$(BIN)/python tests/mutants.py

disturbed: $(READY) ## Record how far disturbed runs of the notebooks come out from what is committed
	@$(BIN)/python tests/elsewhere/settings.py --record 10

oldest: ## Install the oldest versions that are allowed into .venv-oldest, and run the tests
	@$(PYTHON) -m venv --clear .venv-oldest
	@$(PYTHON) tests/floors.py > .venv-oldest/floors.txt
	@$(call install,.venv-oldest) -c .venv-oldest/floors.txt "setuptools>=77"
	@$(call install,.venv-oldest) -c .venv-oldest/floors.txt --no-build-isolation -e ".[test]"
	@PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" .venv-oldest/bin/python -m envace_lite.course installs --name oldest $(INSTALLS)

newest: ## Install the newest versions that agree into .venv-newest, and run the tests
	@$(PYTHON) -m venv --clear .venv-newest
	@$(call install,.venv-newest) --upgrade "setuptools>=77"
	@$(call install,.venv-newest) --upgrade --no-build-isolation -e ".[test]"
	@PATH="$(CURDIR)/.venv-newest/bin:$$PATH" .venv-newest/bin/python -m envace_lite.course installs --name newest $(INSTALLS)

resolve: $(READY) ## Ask pip what it would install for other Pythons; nothing is installed
	@$(BIN)/python -m envace_lite.course installs $(PYTHONS:%=--resolve %) $(INSTALLS)

lint: $(READY) ## ruff and mypy
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "Some files are not formatted: make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

format: $(READY) ## Format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

notebooks: $(READY) ## Run the notebooks in place, in order
	@for n in $(NOTEBOOKS); do echo "$$n"; $(EXECUTE) "$$n" || exit 1; done
	@$(BIN)/python tests/lint_notebooks.py --fix $(NOTEBOOKS)

assignments: $(READY) ## Make the copies of the assignments from their masters, and run those that are solved
	@$(BIN)/envace assignments
	@for n in $(SOLVED); do $(EXECUTE) "$$n" || exit 1; done

docs: $(READY) ## Render the documentation in site_docs/, strictly
	@$(BIN)/mkdocs build --quiet --strict

site: $(READY) ## Render the course as static HTML in site/
	@$(BIN)/envace site

bench: $(READY) ## Time training and rollouts on this machine
	@$(BIN)/python -m envace_lite.experiments bench

study: $(READY) ## Compare methods over domains and seeds; records the runs in data/runs
	@$(BIN)/python -m envace_lite.experiments study

clean: ## Remove caches and build output; .venv stays
	@rm -rf build dist site site_docs *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@find . -path './.venv*' -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -print \
	  | while read -r d; do rm -rf "$$d"; done
