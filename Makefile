# Every target sets up what it needs in .venv; PYTHON names another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-real soak lint clean

demo: $(VENV)/.base
	$(BIN)/python -m experiments.run --config=experiments/desk.py

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# What needs packages of hundreds of megabytes: the public benchmarks' own code, and torch as the reference.
test-real: $(VENV)/.real
	$(BIN)/python -m environments.install bfcl
	$(BIN)/python -m pytest -m real

soak: $(VENV)/.base
	$(BIN)/python -m environments.install bfcl
	$(BIN)/python -m experiments.soak

lint: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  f"cojax needs Python 3.11 or newer, found {sys.version.split()[0]}; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: setup.py | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.real: setup.py environments/bfcl/__init__.py | $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,real]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps \
	  $$($(BIN)/python -c 'from environments.bfcl import RECIPE; print(*RECIPE.requirements)')
	@touch $@

$(VENV)/.test: setup.py | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/.base
