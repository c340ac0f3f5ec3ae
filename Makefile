# Two commands for a newcomer: `make demo` and `make test`. Both make their own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# More arguments for pytest, in each target that runs it; the last ones win.
PYTEST_ARGS ?=
# How much is done of each search for a mistake.
SEARCH_SHARE ?= 0.5
SHELL  := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Images for containers often forbid bytecode. Then pytest rewrites each test module anew in each process, and each server,
# agent and rank that a test starts compiles all of our modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install compare dashboards panels dashboard-types tools fuzz spmd years chaos soak fresh demo lint types imports unit check integration long frameworks zoo zoo-core zoo-once \
  zoo-stream mutants threat-mutants natives tried sanitize docs pictures wheel dist test test-all bench layouts onset clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	# This exact torch: a bare "torch" brings gigabytes of CUDA libraries that the tests do not need.
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[server,test,lint,frameworks,docs]'
	touch $@

install: $(BIN)/.installed # the virtual environment alone

demo: $(BIN)/.installed ## hang a real 4-rank job and read the verdict
	@$(BIN)/python -m tests.zoo.demo

lint: $(BIN)/.installed ## formatter and linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(BIN)/.installed ## mypy --strict
	$(BIN)/mypy

imports: $(BIN)/.installed ## import contracts: rank, agent and server never import each other
	$(BIN)/lint-imports

tools: # what the tests run beside Python: missing tools are an error, never a skipped test
	@for tool in prometheus promtool prometheus-alertmanager amtool; do command -v $$tool > /dev/null || { \
	  echo "$$tool is missing: apt-get install -y --no-install-recommends prometheus prometheus-alertmanager" >&2; \
	  exit 1; }; done
	@command -v chromium > /dev/null || { \
	  echo "chromium is missing: apt-get install -y --no-install-recommends chromium" >&2; exit 1; }
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || { \
	  echo "initdb is missing: apt-get install -y --no-install-recommends postgresql" >&2; exit 1; }

unit: $(BIN)/.installed tools ## unit, property and scenario tests
	$(BIN)/pytest -n 2 --dist worksteal --search-share $(SEARCH_SHARE) -m "not integration and not fresh" tests/unit tests/properties \
	  tests/scenarios tests/postmortem tests/gpu tests/fuzz tests/spmd tests/years tests/dumps tests/soak $(PYTEST_ARGS)

check: lint types imports unit ## what to run before each commit

# In the order of tests/conftest.py, the longest files first; by itself xdist begins with those that have the most tests.
integration: $(BIN)/.installed tools ## tests on real processes
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not zoo and not long" tests/integration tests/integrations tests/coverage \
	  tests/postmortem/test_real_dumps.py tests/zoo/test_stream.py tests/sanitized --durations=40 \
	  $(PYTEST_ARGS)

long: $(BIN)/.installed ## tests on real processes that take long
	$(BIN)/pytest -m long tests/integration $(PYTEST_ARGS)

frameworks: $(BIN)/.installed ## hangs of Lightning, Fabric, transformers, Accelerate, DeepSpeed and Ray Train with attach() alone (installs 400 MB)
	$(BIN)/pip install --quiet 'ray[train]' deepspeed
	FRAMEWORKS=all $(BIN)/pytest tests/integrations $(PYTEST_ARGS)

zoo: $(BIN)/.installed ## the benchmark: every program three times, scoreboard in build/; SEED=n COUNT=m draws injected faults
	$(BIN)/python -m tests.zoo.runner --scoreboard build $(if $(SEED),--seed $(SEED) $(if $(COUNT),--count $(COUNT)),--repeat 3) --jobs 2

# Three at a time: much of a program's time is waiting. Ranks are forked after one import of torch and have one server,
# except where their start or end is in question.
zoo-core: $(BIN)/.installed ## a program of the zoo for each cause: those that do not depend on the load of the machine
	$(BIN)/pytest -n 3 --dist worksteal -m "core or not zoo" --ignore tests/zoo/test_stream.py tests/zoo $(PYTEST_ARGS)

zoo-once: $(BIN)/.installed ## every program of the zoo once
	$(BIN)/pytest -n 3 --dist worksteal --ignore tests/zoo/test_stream.py tests/zoo $(PYTEST_ARGS)

zoo-stream: $(BIN)/.installed ## the same programs with NCCL's semantics
	$(BIN)/pytest -n 3 --dist worksteal -m zoo tests/zoo/test_stream.py $(PYTEST_ARGS)

compare: $(BIN)/.installed ## what other tools say of the programs of the zoo (hours; continues where it stopped); ONLY=z01,z09
	$(BIN)/python -m tests.compare $(if $(ONLY),--only $(ONLY)) --page docs/comparison.md

dashboards: $(BIN)/.installed ## write grafana/dashboards from the Python beside it
	$(BIN)/python -m grafana

dashboard-types: $(BIN)/.installed ## the dashboards against the types of npm's @grafana/schema
	$(BIN)/python -m grafana.types_check

fuzz: $(BIN)/.installed ## what others send, changed at random: a minute for each surface; SECONDS=n SURFACE=name SEED=n
	$(BIN)/python -m tests.fuzz $(SURFACE) --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

spmd: $(BIN)/.installed ## the judge against random programs of which is known what is so; SEED=n COUNT=m
	$(BIN)/python -m tests.spmd $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

years: $(BIN)/.installed ## simulated days of healthy jobs, and faulty jobs, through the real watch and judge; SEED=n JOB_DAYS=m FAULTY=k
	$(BIN)/python -m tests.years $(if $(SEED),--seed $(SEED)) --job-days $(or $(JOB_DAYS),100) --faulty $(or $(FAULTY),300)

chaos: $(BIN)/.installed ## faults in ranks, agent, server, store and line at each step of a hang (an hour); SEED=n ONLY=step,fault CHAOS_SHARE=0.1
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') --share $(or $(CHAOS_SHARE),1)

soak: $(BIN)/.installed ## small real jobs come and go on one server and agent (an hour), and what of theirs grows; SOAK_JOBS=n SEED=n
	$(BIN)/python -m tests.soak --jobs $(or $(SOAK_JOBS),5000) $(if $(SEED),--seed $(SEED))

fresh: $(BIN)/.installed ## searches for mistakes that draw other examples each time
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile fresh tests/properties tests/spmd $(PYTEST_ARGS)

mutants: $(BIN)/.installed ## which small mistakes in the judge no test notices (hours, and goes on where it was; SHARE=0.1 tries a tenth)
	$(BIN)/python -m tests.mutation --share $(or $(SHARE),1)

threat-mutants: $(BIN)/.installed ## whether the tests of docs/threat-model.md notice that an assumption was taken away (half an hour; ONLY=report_file)
	$(BIN)/python -m tests.mutation.threats $(ONLY)

natives: $(BIN)/.installed ## the native recorder for each torch and Python, into the package (about 45 s of CPU for each torch; TORCH=2.13)
	$(BIN)/python -m natives $(addprefix --torch ,$(TORCH))

tried: $(BIN)/.installed ## each of these sides in the torch that it is for, and the table of what ran in docs/native.md (TORCH=2.13)
	$(BIN)/python -m natives.tried $(addprefix --torch ,$(TORCH))

sanitize: $(BIN)/.installed ## the native recorder with AddressSanitizer and ThreadSanitizer, over a stand-in and under the real torch (minutes)
	SANITIZE=all setarch -R $(BIN)/pytest tests/sanitized

docs: $(BIN)/.installed ## the documentation, checked strictly: build/site/index.html
	$(BIN)/zensical build --strict --config-file mkdocs.yml

pictures: $(BIN)/.installed tools ## the pictures of the documentation, from running code (two minutes)
	$(BIN)/python -m tests.pictures

panels: $(BIN)/.installed tools ## the Grafana dashboards, drawn without Grafana into build/panels, to be looked at (npm, 420 MB)
	$(BIN)/python -m tests.panels

wheel: $(BIN)/.installed ## the built wheel, in an empty virtual environment
	$(BIN)/python -m tests.wheel.check

dist: $(BIN)/.installed ## a release in dist/: sdist, wheel, list of components; installed offline and tried (a minute and a gigabyte)
	$(BIN)/pip install --quiet 'build>=1' 'twine>=5' 'cyclonedx-bom>=4'
	$(BIN)/python -m tests.wheel.dist

test: $(BIN)/.installed ## what CI runs: everything that does not depend on the load of the machine, in a quarter of an hour
	$(BIN)/python -m tests.gate lint types imports unit docs integration zoo-core wheel dashboard-types demo \
	  --live integration --live zoo-core

test-all: $(BIN)/.installed ## that, the whole zoo on gloo and with NCCL's semantics, other frameworks, long searches, all faults of chaos: four hours
	$(BIN)/python -m tests.gate lint types imports unit docs fresh fuzz years integration long chaos frameworks zoo-once zoo-stream wheel dashboard-types demo \
	  --live integration --live long --live frameworks --live zoo-once --live zoo-stream

bench: $(BIN)/.installed ## what recording and the agent cost, as in the README
	$(BIN)/python -m tests.bench

layouts: $(BIN)/.installed ## right ranks, ticks and verdicts on simulated jobs of 1,024 to 98,304 ranks: a quarter of an hour
	$(BIN)/python -m tests.bench.layouts --json build/layouts.json

onset: $(BIN)/.installed ## onset-to-verdict times of the zoo, as in the README
	$(BIN)/python -m tests.bench.onset

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
