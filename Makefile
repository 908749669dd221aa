# Every target makes what it needs, so `make demo` and `make test` work on a fresh clone.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RINGS := $(BIN)/python -m tests.rings
# Tests start the same code in hundreds of processes: keep compiled Python, even if the environment says not to.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test nightly lint audit unit engine e2e chaos results lock clean fuzz soak

help: ## show this list
	@sed -n 's/^\([a-z0-9]*\):.*## /  make \1 \t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(INSTALLED) ## answer a question about a long document, speculative and dense
	$(BIN)/skim demo

# tests/rings.py has the commands. A ring that fails keeps no other from running; a table of all ends the run.
test: $(INSTALLED) ## run lint and the tests of each push (minutes: docs/testing.md)
	@$(RINGS) lint unit engine e2e chaos

nightly: $(INSTALLED) ## run what a night adds to them: more models, clusters and examples, then peer, soak and fuzz
	@$(RINGS) --night unit engine e2e chaos peer soak fuzz

lint: $(INSTALLED) ## check style, types, imports and security
	@$(RINGS) lint

# It has an environment of its own, with the newest pip-audit, and asks the network for known vulnerabilities.
audit: ## look for known vulnerabilities in the pinned dependencies; needs the network
	@[ -x build/audit/bin/pip-audit ] || { $(PYTHON) -m venv --without-pip build/audit && \
		$(PYTHON) -m pip --python build/audit/bin/python install --quiet pip-audit; }
	@# A version with a local tag (torch +cpu) is known under the version without it.
	@for lock in cpu gpu; do sed 's/===/==/; s/+cpu$$//' requirements/$$lock.lock > build/audit/$$lock.txt; \
		build/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement build/audit/$$lock.txt || exit 1; done

unit: $(INSTALLED) ## run the tests without an engine
	@$(RINGS) unit

engine: $(INSTALLED) ## run the tests of real engines, on CPU
	@$(RINGS) engine

e2e: $(INSTALLED) ## run the tests of Ray, HTTP and real clients
	@$(RINGS) e2e

chaos: $(INSTALLED) ## run the tests in which clients hang up and processes die
	@$(RINGS) chaos

# With a new seed each time, which is printed; `make fuzz SEED=N` repeats a run. For every night: it takes about an hour.
fuzz: $(INSTALLED) ## send random bytes and requests to the decoders and the router, about an hour
	@printf '\n== fuzz: random bytes and requests\n'
	$(BIN)/python -m tests.fuzz.nightly $(if $(SEED),--seed $(SEED))

soak: $(INSTALLED) ## break every part at random under load, for 30 minutes; then draft channel and KV cache
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30)
	$(BIN)/python -m tests.soak.engines

$(INSTALLED): pyproject.toml requirements/cpu.lock requirements/install.sh
	@requirements/install.sh $(PYTHON) $(VENV)
	@touch $@

results: $(INSTALLED) ## make docs/results.md and its plots from benchmarks/results, and the tables of docs/options.md
	$(BIN)/python -m evals.report

# Keeps the pins that still fit; `make lock UPGRADE=1` takes the newest version of every package.
lock: ## pin all dependencies in requirements/cpu.lock and gpu.lock
	$(PYTHON) -m venv --without-pip build/lock
	$(PYTHON) -m pip --python build/lock/bin/python install --quiet pip==26.2 pip-tools==7.6.2
	CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/python -m piptools compile --quiet --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--unsafe-package torchvision --unsafe-package torchaudio --unsafe-package torchcodec \
		--unsafe-package nixl-cu12 --extra cpu --extra batch --extra bench --extra mcp --extra split --extra dev \
		$(if $(UPGRADE),--upgrade) \
		--output-file requirements/cpu.lock pyproject.toml requirements/cpu.in
	CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/python -m piptools compile --quiet --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--unsafe-package nixl-cu12 --extra gpu --extra batch --extra mcp --extra split $(if $(UPGRADE),--upgrade) \
		--output-file requirements/gpu.lock pyproject.toml requirements/gpu.in

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
