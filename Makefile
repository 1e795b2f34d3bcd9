# Everything runs in .venv, made from requirements.lock with hashes. Needs Python 3.11 or newer, make, git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-fast test-slow check replay lock clean

help:
	@echo "make demo    the main job: three services and two fleets on loopback, real data, a result"
	@echo "make test    every test (test-fast, then test-slow)"
	@echo "make check   ruff, mypy, import contracts"
	@echo "make replay  the figures' experiments again, compared with docs/figures/rows (half an hour)"
	@echo "make lock    write requirements.lock again from pyproject.toml"
	@echo "make clean   remove the environment, caches and .distrust/"

demo: $(STAMP)
	@exec $(BIN)/distrust demo

test: test-fast test-slow

test-fast: $(STAMP)
	@$(BIN)/pytest -q -m "not slow" $(PYTEST)

test-slow: $(STAMP)
	@$(BIN)/pytest -q -m slow $(PYTEST)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# SWEEP="--repetitions 1" plays one run of every cell: a minute or two.
replay: $(STAMP)
	@for rows in docs/figures/rows/*.parquet; do \
	    $(BIN)/distrust sweep "$$(basename "$$rows" .parquet)" --check "$$rows" $(SWEEP) || failed=1; \
	done; exit $${failed:-0}

lock: $(STAMP)
	$(BIN)/pip-compile -q --extra dev --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-find-links \
	    --no-annotate --strip-extras --no-header -o requirements.lock pyproject.toml

# setuptools is in the lock, so the project itself is built from hashed parts and without the network.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "distrust needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make an environment: install its venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@echo "setting up .venv from requirements.lock (about a minute, once)"
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf $(VENV) .distrust .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
