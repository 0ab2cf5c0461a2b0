# Every target sets up what it needs in .venv; PYTHON names another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# SGLang has a virtual environment of its own; this one serves without an accelerator.
SGLANG := $(or $(COJAX_CACHE),$(HOME)/.cache/cojax)/sglang
# So have the compilers for accelerators: wherever they are installed, JAX looks for the hardware when it starts.
COMPILERS := $(dir $(SGLANG))compilers
SHIMS := cojax/rollout/sglang/cpu_shims
SMOLLM2 := models/SmolLM2-135M-Instruct
PIECE ?= 50MiB
CARD_PYTHON ?= 3.12
# The newest Python of these that is found and runs.
NEWEST = $(shell for version in 3.13 3.12; do for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
  "$$python" -c '' 2>/dev/null && echo "$$python" && exit; done; done)
# A worker that crashes is replaced twice at most; one that crashes at every start would be replaced for ever.
PARALLEL := -n 2 --dist loadfile --max-worker-restart=2
# Tests that two processes at once would disturb.
ALONE := tests/rollout tests/experiments/test_campaign_real.py tests/experiments/test_gpu_kit_real.py

# Make takes what has spaces for several files.
ifneq ($(words $(VENV)),1)
  $(error VENV is "$(VENV)"; expected a path without spaces)
endif
# An environment that is there keeps its interpreter. Some goals do not use it.
ifeq ($(origin PYTHON),command line)
  ifneq ($(if $(filter clean sglang,$(MAKECMDGOALS)),,$(wildcard $(BIN)/python)),)
    ifeq ($(shell $(PYTHON) -c '' && echo runs),)
      $(error PYTHON is "$(PYTHON)", which does not run; name an interpreter, as python3.11)
    endif
    VERSION := -c 'import sys; print(*sys.version_info[:2], sep=".")'
    ifneq ($(shell $(PYTHON) $(VERSION)),$(shell $(BIN)/python $(VERSION)))
      $(error $(VENV) has Python $(shell $(BIN)/python $(VERSION)), not $(PYTHON); remove it by make clean, or name another VENV)
    endif
  endif
endif
ifneq ($(words $(SGLANG)),1)
  ifneq ($(filter sglang test-real nightly,$(MAKECMDGOALS)),)
    $(error the cache is "$(SGLANG)", a path with spaces; name one without in COJAX_CACHE)
  endif
endif

.PHONY: demo demo-lm smollm2 test test-newest test-oldest test-real test-real-together test-real-alone .compiles .arrays .worlds .worlds-nightly nightly test-wheels bench gpu-kit campaign study docs lint sglang compilers clean

demo: $(VENV)/.base
	$(BIN)/python -m experiments.run --config=experiments/desk.py --config.same_bits=True

# The same with a pretrained language model.
demo-lm: smollm2
	$(BIN)/python -m experiments.run --config=experiments/desk_smollm2.py --config.model.path=$(SMOLLM2)

# A pretrained model of 135 million parameters; once.
smollm2: $(SMOLLM2)/config.json

$(SMOLLM2)/config.json: | $(VENV)/.base
	$(BIN)/python -m experiments.convert smollm2 $(SMOLLM2)

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest $(PARALLEL) --no-loadscope-reorder

# A part of the tests that compiles, and the demo's preflight, on the newest Python and the newest packages.
test-newest:
	@if [ -n "$(NEWEST)" ]; then $(MAKE) .compiles VENV=.venv-newest PYTHON="$(NEWEST)"; \
	  else echo "neither Python 3.13 nor 3.12 is found; nothing was tested on a newer one than $$($(PYTHON) -V)"; fi

.compiles: $(VENV)/.test
	$(BIN)/python -m pytest -m compiles $(PARALLEL) $$(grep -rl --include=*.py mark.compiles tests)
	$(BIN)/python -m experiments.run --config=experiments/desk.py --check --workdir=build/check

# The tests with the oldest packages that setup.py allows, as uv chooses them.
test-oldest: $(VENV)/.test
	$(BIN)/pip install --disable-pip-version-check --quiet uv
	$(BIN)/python -m venv .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct --editable '.[test]'
	rm -f .venv-oldest/.lock  # everybody may write it, which the tests of sandboxes report
	.venv-oldest/bin/python -m pytest $(PARALLEL) --no-loadscope-reorder

# What needs packages of hundreds of megabytes: the public benchmarks' own code, and torch as the reference.
test-real: test-real-together test-real-alone

.worlds: $(VENV)/.real
	$(BIN)/python -m environments.install bfcl
	$(BIN)/python -m environments.install appworld --data=tiny
	$(BIN)/python -m environments.install tau2
	$(BIN)/python -m environments.install mcp

# These take minutes to install, or an hour, half a gigabyte, a compiler or Java.
.worlds-nightly: $(VENV)/.real
	$(BIN)/python -m environments.install verifiers
	$(BIN)/python -m environments.install openenv
	$(BIN)/python -m environments.install scienceworld
	$(BIN)/python -m environments.install alfworld --data=tiny

test-real-together: .worlds $(SGLANG)/.installed $(COMPILERS)/.installed
	$(BIN)/python -m pytest -m 'real and not nightly' $(PARALLEL) $(ALONE:%=--ignore=%)

# A real server and the GPU kit take the cores for themselves, and the campaign counts all processes and files.
test-real-alone: .worlds $(SGLANG)/.installed
	$(BIN)/python -m pytest -m 'real and not nightly' $(ALONE)

# What takes too long for continuous integration.
nightly: .worlds .worlds-nightly $(SGLANG)/.installed $(COMPILERS)/.installed
	$(BIN)/python -m pytest -m nightly
	@if [ -n "$(NEWEST)" ]; then $(MAKE) .arrays VENV=.venv-newest PYTHON="$(NEWEST)"; \
	  else echo "neither Python 3.13 nor 3.12 is found; nothing was tested on a newer one than $$($(PYTHON) -V)"; fi

.arrays: $(VENV)/.test
	$(BIN)/python -m pytest $(PARALLEL) tests/learner tests/policy tests/rollout

# The package, built, installed with its dependencies by every interpreter from 3.11 to 3.13 that is found, and used.
test-wheels: $(VENV)/.test
	$(BIN)/python -m pytest -m '' tests/test_wheels.py

bench: $(VENV)/.base
	$(BIN)/python -m experiments.bench

# What a card is worth, in pieces to copy to a machine without a network: build/gpu-kit. PIECE is the most that one has,
# CARD_PYTHON the version of Python there.
gpu-kit: $(VENV)/.base
	$(BIN)/python -m benchmarks.gpu.kit --piece=$(PIECE) --python=$(CARD_PYTHON)

# Hostile episodes and faults, counted by what they broke; CAMPAIGN=--seed=7 plays others.
campaign: $(VENV)/.base
	$(BIN)/python -m environments.install bfcl
	$(BIN)/python -m environments.install appworld --data=tiny
	$(BIN)/python -m environments.install mcp --data=none
	$(BIN)/python -m experiments.campaign $(CAMPAIGN)

# The paper's comparison; goes on where it was stopped.
study: $(VENV)/.base
	$(BIN)/python -m experiments.study --name=main

# The site of docs/, in build/docs. Built anew each time: pages refer to each other. A warning is an error.
docs: $(VENV)/.docs
	rm -rf build/docs
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --quiet --doctree-dir build/doctrees docs build/docs
	@echo "built: build/docs/index.html"

lint: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

sglang: $(SGLANG)/.installed
	@echo "SGLang is in $(SGLANG); --config.engine=sglang launches it from there"

compilers: $(COMPILERS)/.installed
	@echo "compile for an accelerator by $(COMPILERS)/bin/python -m experiments.compile --target=…"

clean:
	rm -rf $(VENV) .venv-newest .venv-oldest build *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  f"cojax needs Python 3.11 or newer, found {sys.version.split()[0]}; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# Run again, it goes on where it was stopped: what pip has installed stays.
$(SGLANG)/.installed: $(SHIMS)/requirements.txt $(SHIMS)/sglang.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] in ((3, 11), (3, 12)) else \
	  f"SGLang needs Python 3.11 or 3.12, found {sys.version.split()[0]}; run: make sglang PYTHON=python3.11")'
	mkdir -p $(@D)
	$(SGLANG)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/pip install --disable-pip-version-check -r $(SHIMS)/requirements.txt
	$(SGLANG)/bin/pip install --disable-pip-version-check --no-deps -r $(SHIMS)/sglang.txt
	PYTHONPATH=$(SHIMS) SGLANG_USE_CPU_ENGINE=1 $(SGLANG)/bin/python -c 'import sglang.launch_server'
	@touch $@

$(COMPILERS)/.installed: setup.py | $(BIN)/python
	mkdir -p $(@D)
	$(COMPILERS)/bin/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m venv --clear $(COMPILERS)
	$(COMPILERS)/bin/pip install --disable-pip-version-check --editable '.[compilers]'
	@touch $@

$(VENV)/.base: setup.py | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.real: setup.py environments/bfcl/__init__.py | $(VENV)/.test
	$(BIN)/pip install --disable-pip-version-check --editable '.[test,real,docs,notebook]'
	$(BIN)/pip install --disable-pip-version-check --no-deps \
	  $$($(BIN)/python -c 'from environments.bfcl import RECIPE; print(*RECIPE.requirements)')
	@touch $@

$(VENV)/.docs: setup.py | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.base

$(VENV)/.test: setup.py | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/.base
