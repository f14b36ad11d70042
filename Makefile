# `make` alone lists what there is.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# pip's own settings (PIP_INDEX_URL, pip.conf, …) decide where packages come from. For another build of torch:
#   make setup TORCH='torch==2.13.0+cu130'
TORCH ?= torch==2.13.0
MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct
# Without their requirements; see docs/environments/bfcl.md and discoveryworld.md.
WITHOUT_DEPS := bfcl-eval==2026.3.23 discoveryworld==0.0.2
EXTRAS := bfcl,code,completion,games,math,mcp,parquet,science,web
VENV ?= .venv
PYTHON ?= $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
PYTEST_WORKERS ?= 2

PY := $(VENV)/bin/python
# One thread each: pytest-xdist's workers are the parallelism.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: help setup setup-all quickstart test test-learn lint bench experiment-quickstart experiment-algorithms constraints clean FORCE

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.weights  ## make .venv with the package, its tools and the model weights; instant when done already

setup-all: setup  ## setup, and what single environments need besides: all extras, a browser
	$(PY) -m pip install -c constraints.txt -e '.[dev,$(EXTRAS)]'
	@if ! $(PY) -m lit_agentrl.envs.browser; then \
	  if [[ "$$(id -u)" == 0 ]] && command -v apt-get >/dev/null && apt-get update -qq \
	      && apt-get install -y -qq --no-install-recommends chromium-headless-shell; then :; \
	  else $(PY) -m playwright install --with-deps chromium-headless-shell; fi; \
	  $(PY) -m lit_agentrl.envs.browser; \
	fi

quickstart: setup  ## train a small agent end to end
	$(PY) -m lit_agentrl fit --config configs/experiment/quickstart.yaml

test: setup  ## run the tests, those marked slow left out
	$(ONE_THREAD) $(PY) -m pytest -n $(PYTEST_WORKERS) -m 'not slow'

test-learn: setup  ## train every algorithm with three seeds: success has to rise by 30 points; half an hour
	$(ONE_THREAD) $(PY) -m pytest -n $(PYTEST_WORKERS) tests/learning

lint: setup  ## ruff, mypy, codespell, validate-pyproject
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/codespell
	$(VENV)/bin/validate-pyproject pyproject.toml

bench: setup  ## run every benchmarks/bench_*.py
	for script in benchmarks/bench_*.py; do echo "== $$script"; $(PY) "$$script"; done

experiment-quickstart: setup  ## the README's quickstart experiment, with its table
	$(PY) benchmarks/quickstart_experiment.py

experiment-algorithms: setup  ## all algorithms on a small task, 5 seeds: docs/results/algorithms.md; an hour on two cores
	$(ONE_THREAD) $(PY) benchmarks/algorithms.py --workers 2

constraints: setup  ## rewrite constraints.txt from what is installed
	{ sed -n '/^#/p' constraints.txt; \
	  $(PY) -m pip freeze --exclude-editable --exclude torch --exclude triton --exclude certifi \
	    | grep -viE '^(nvidia|cuda)'; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

clean:  ## remove caches and build outputs; .venv and runs/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -path ./runs -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf

# Changes only when TORCH does, so that another TORCH installs again.
$(VENV)/.torch: FORCE
	@if [[ -z '$(PYTHON)' ]]; then echo 'lit_agentrl needs Python 3.11 or newer; name one with PYTHON=' >&2; exit 1; fi
	@if [[ ! -x $(PY) ]]; then '$(PYTHON)' -m venv $(VENV); fi
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	@if ! $(PY) -c 'import hnswlib' 2>/dev/null && ! { command -v $${CXX:-c++} >/dev/null \
	    && $(PY) -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; }; then \
	  echo 'hnswlib is compiled from source and needs a C++ compiler: apt-get install g++ python3-dev' >&2; exit 1; fi
	$(PY) -m pip install '$(TORCH)'
	$(PY) -m pip install -c constraints.txt -e '.[dev]'
	$(PY) -m pip install --no-deps $(WITHOUT_DEPS)
	@touch $@

$(VENV)/.weights: $(VENV)/.installed
	$(PY) -m lit_agentrl.policies.resolve $(MODEL)
	@touch $@
