# Every target makes what it needs, so `make demo` and `make test` work on a fresh clone.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CODE := actors benchmarks cluster evals kv_transfer router skim skim_common speculator_service target_service vllm_hooks
PYTEST := $(BIN)/pytest -q
LIMIT := 50m
# Tests start the same code in hundreds of processes: keep compiled Python, even if the environment says not to.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint audit unit engine e2e chaos results lock clean fuzz soak

help: ## show this list
	@sed -n 's/^\([a-z0-9]*\):.*## /  make \1 \t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(INSTALLED) ## answer a question about a long document, speculative and dense
	$(BIN)/skim demo

# A test that hangs is stopped by its own time limit (pyproject.toml); this limit is for all tests together. With lint
# and the installation they take at most 55 minutes.
test: lint ## run lint and all tests, about 40 minutes on two idle cores
	@timeout --foreground --kill-after=60 $(LIMIT) $(MAKE) --no-print-directory unit engine e2e chaos || { \
		code=$$?; [ $$code != 124 ] || echo "The tests were not finished after $(LIMIT) and were stopped." >&2; exit $$code; }

lint: $(INSTALLED) ## check style, types, imports and security
	@printf '\n== lint: style, types, imports, security\n'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive $(CODE)

# It has an environment of its own, with the newest pip-audit, and asks the network for known vulnerabilities.
audit: ## look for known vulnerabilities in the pinned dependencies; needs the network
	@[ -x build/audit/bin/pip-audit ] || { $(PYTHON) -m venv --without-pip build/audit && \
		$(PYTHON) -m pip --python build/audit/bin/python install --quiet pip-audit; }
	@# A version with a local tag (torch +cpu) is known under the version without it.
	@for lock in cpu gpu; do sed 's/===/==/; s/+cpu$$//' requirements/$$lock.lock > build/audit/$$lock.txt; \
		build/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement build/audit/$$lock.txt || exit 1; done

unit: $(INSTALLED) ## run the tests without an engine, about a minute
	@printf '\n== unit: no engine, no cluster\n'
	$(PYTEST) -n 2 --dist loadfile tests/unit

engine: $(INSTALLED) ## run the tests of real engines, on CPU
	@printf '\n== engine: real engines against the oracle\n'
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder tests/engine

e2e: $(INSTALLED) ## run the tests of Ray, HTTP and real clients
	@printf '\n== e2e: Ray, HTTP, real clients\n'
	$(PYTEST) tests/e2e

chaos: $(INSTALLED) ## run the tests in which clients hang up and processes die
	@printf '\n== chaos: clients that hang up, processes that die\n'
	$(PYTEST) tests/chaos

# With a new seed each time, which is printed; `make fuzz SEED=N` repeats a run. For every night: it takes about an hour.
fuzz: $(INSTALLED) ## send random bytes and requests to the decoders and the router, about an hour
	@printf '\n== fuzz: random bytes and requests\n'
	$(BIN)/python -m tests.fuzz.nightly $(if $(SEED),--seed $(SEED))

soak: $(INSTALLED) ## break every part at random under load, for 30 minutes; then draft channel and KV cache
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30)
	$(BIN)/python -m tests.chaos.soak_engines

$(INSTALLED): pyproject.toml requirements/cpu.lock requirements/install.sh
	@requirements/install.sh $(PYTHON) $(VENV)
	@touch $@

results: $(INSTALLED) ## make docs/results.md and its plots from benchmarks/results
	$(BIN)/python -m benchmarks.report

# Keeps the pins that still fit; `make lock UPGRADE=1` takes the newest version of every package.
lock: ## pin all dependencies in requirements/cpu.lock and gpu.lock
	$(PYTHON) -m venv --without-pip build/lock
	$(PYTHON) -m pip --python build/lock/bin/python install --quiet pip==26.2 pip-tools==7.6.2
	CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/python -m piptools compile --quiet --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--unsafe-package torchvision --unsafe-package torchaudio --unsafe-package torchcodec \
		--unsafe-package nixl-cu12 --extra cpu --extra batch --extra bench --extra split --extra dev \
		$(if $(UPGRADE),--upgrade) \
		--output-file requirements/cpu.lock pyproject.toml requirements/cpu.in
	CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/python -m piptools compile --quiet --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--unsafe-package nixl-cu12 --extra gpu --extra batch --extra split $(if $(UPGRADE),--upgrade) \
		--output-file requirements/gpu.lock pyproject.toml requirements/gpu.in

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
