# Everything a person or CI types. Each target is safe to repeat and works from a clean clone.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 1800
WORKERS ?= 2

.PHONY: help setup run test redis soak fuzz lint types proto proto-check docs docs-check golden demo-data corpus bench bench-peers package clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv with all that running, testing and developing needs

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (PYTHON=... names another)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "setup: Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing into $(VENV) (2 GB, a minute or two)"
	@$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	@$(BIN)/pip install -q -c constraints.txt -e '.[server,demo,dev]'
	@touch $@

run: setup demo-data ## the main job on real input: serve, train, kill, resume on other ranks, audit
	$(BIN)/python examples/train/run_demo.py

# Images set PYTHONDONTWRITEBYTECODE at times, and then each process that a test starts compiles our sources anew.
test: setup demo-data redis ## all tests, in WORKERS=2 processes: many wait more than they compute
	@$(BIN)/python -m compileall -q dataloader_svc balancers clients
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

redis: ## a Redis server for tests of the store: installed where that can be done, else said
	@command -v redis-server >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	       && { apt-get install -y -qq --no-install-recommends redis-server >/dev/null 2>&1 \
	            || { apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } >/dev/null 2>&1; }; } \
	  || echo "test: redis-server is missing, its tests are skipped (apt-get install redis-server)"

soak: setup redis ## a job that has a bad day, for SOAK_SECONDS=1800; prints events, losses (0), repeats (0)
	PYTHONPATH=tests $(BIN)/python -m faults.chaos --seconds $(SOAK_SECONDS) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

fuzz: setup ## damaged files of every format, and odd calls of every RPC, for FUZZ_SECONDS=60 each: only refusals
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(FUZZ_SECONDS)
	PYTHONPATH=tests $(BIN)/python -m tests.fuzz.rpc --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

lint: setup ## style, format and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## mypy, strict
	$(BIN)/mypy

proto: setup ## generate clients/dataloader_client/_pb from proto/
	$(BIN)/python proto/generate.py

proto-check: setup ## is the committed generated code fresh?
	$(BIN)/python proto/generate.py --check

docs: setup ## write the reference pages that come from the code
	$(BIN)/python docs/generate.py

docs-check: setup ## are they fresh?
	$(BIN)/python docs/generate.py --check

golden: setup ## rewrite the planner's golden traces; review the diff
	$(BIN)/python -m pytest tests/golden --update

demo-data: setup ## real pictures, clips, code and text under build/demo
	$(BIN)/python examples/demo/make_data.py --out build/demo

corpus: setup ## a larger corpus from Debian packages under build/corpus, without root
	$(BIN)/python examples/corpus/make_corpus.py --out build/corpus

bench: setup demo-data ## measure; prints ratios against a peer or a bound
	$(BIN)/python -m pytest tests/bench -m bench -s

bench-peers: setup demo-data ## the service beside the loaders that people use; an hour (PEERS="--workload text")
	$(BIN)/python -m tests.bench.peers $(PEERS)

package: setup ## build a wheel and import it in empty environments
	$(BIN)/python .ci/check_wheel.py

clean: ## remove what was built; keeps .venv
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
