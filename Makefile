# Everything runs in .venv, made from requirements.lock with hashes. Needs Python 3.11 or newer, make, git.
# `demo` and `test-fast` need nothing else. Other tests start programs of Debian packages: see `system-packages`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RAY := .venv-ray

# Tests and services start hundreds of processes, and without compiled modules each compiles the project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-slow test-kernels test-ray test-alone mutations system-packages check lint
.PHONY: types contracts replay notebooks docs dist dist-check lock clean

help:
	@echo "make demo    the main job: three services and two fleets on loopback, real data, a result"
	@echo "make test    the tests before a merge (test-fast, test-slow); CI plays test-kernels, test-ray and test-alone, too"
	@echo "make mutations  changes lines that matter, one at a time, and sees a test fail for each"
	@echo "make system-packages  the Debian packages that slow and alone tests and mutations need, installed by root"
	@echo "make check   ruff, its format, mypy, import contracts"
	@echo "make replay  the figures' experiments again, compared with docs/figures/rows (four and a half hours of a core)"
	@echo "make notebooks  the notebooks of examples/ again, with their outputs"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make dist    wheel, sdist and bill of materials in dist/ (dist-check: installed in clean environments)"
	@echo "make lock    write requirements.lock and requirements-runtime.lock again from pyproject.toml"
	@echo "make clean   remove the environment, caches and .distrust/"

demo: $(STAMP)
	@exec $(BIN)/distrust demo $(DEMO)

# One session for both stages: each worker collects the tests once. Twice as many workers as cores: tests over
# services wait for each other's processes, and browsers for pages.
WORKERS = $$($(BIN)/python -c 'import os; print(2 * os.cpu_count())')

test: $(STAMP) system-packages
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not alone and not kernels and not ray" $(PYTEST)

test-fast: $(STAMP)
	@$(BIN)/pytest -q -n auto --dist worksteal -m "not slow and not alone and not kernels and not ray" $(PYTEST)

test-slow: $(STAMP) system-packages
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "slow and not alone and not kernels and not ray" $(PYTEST)

# What slow and alone tests and the mutations start of Debian's: package and program. Root's make installs what is
# missing; other users are told the line to run.
SYSTEM_PACKAGES := postgresql:initdb chromium:chromium haproxy:haproxy openssl:openssl
OFF_PATH ?= /usr/sbin /usr/lib/postgresql/*/bin

system-packages:
	@missing=; for pair in $(SYSTEM_PACKAGES); do \
	    program=$${pair#*:}; found=$$(command -v $$program); \
	    for place in $(OFF_PATH); do [ ! -x $$place/$$program ] || found=$$place; done; \
	    [ "$$found" ] || missing="$$missing $${pair%:*}"; \
	done; [ "$$missing" ] || exit 0; \
	install="apt-get install -y --no-install-recommends$$missing"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Debian packages for tests:$$missing"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$install -qq >/dev/null && exit 0; \
	fi; echo "some tests need Debian packages; as root: apt-get update && $$install" >&2; exit 2

# The files that have such tests are named, so that one process need not collect all the others.
test-kernels: $(STAMP)
	@$(BIN)/pytest -q -n auto -m "kernels and not alone and not ray" $$(grep -rl "mark\.kernels" tests --include='*.py') $(PYTEST)

# Ray has an environment of its own, with what a user of the extras `lab` and `ray` installs and nothing else.
test-ray: $(STAMP) $(RAY)/.installed
	@$(BIN)/pytest -q -m "ray and not alone" $$(grep -rl "mark\.ray" tests --include='*.py') $(PYTEST)

$(RAY)/.installed: requirements-ray.lock pyproject.toml
	@$(PYTHON) -m venv --clear $(RAY)
	@$(RAY)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-ray.lock
	@$(RAY)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test-alone: $(STAMP) system-packages
	@$(BIN)/pytest -q -m "alone" $$(grep -rl "mark\.alone" tests --include='*.py') $(PYTEST)

mutations: $(STAMP) system-packages
	@$(BIN)/python -m tests.repo.mutations $(WORD)

check: lint types contracts

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

# SWEEP="--repetitions 1" plays one run of every pair of panel and series, an eighth of the work.
replay: $(STAMP)
	@for rows in docs/figures/rows/*.parquet docs/figures/rows/tuning/*.parquet; do \
	    name=$$(basename "$$rows" .parquet); \
	    case $$rows in */tuning/*) name=lab/experiments/tuning/$$name.toml;; esac; \
	    $(BIN)/distrust sweep "$$name" --check "$$rows" $(SWEEP) || failed=1; \
	done; exit $${failed:-0}

notebooks: $(STAMP)
	@$(BIN)/python examples/execute.py

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# Builds the last commit, not the work tree. The commit's time and one umask stand for those of the machine, so that
# two builds of a commit give the same wheel.
dist: $(STAMP)
	@rm -rf dist && mkdir -p dist/commit
	@umask 022 && git archive HEAD | tar -x --no-same-permissions -C dist/commit
	@umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	    $(BIN)/python -m build --no-isolation --outdir dist dist/commit >dist/log 2>&1 || { cat dist/log; exit 1; }
	@PYTHONWARNINGS=ignore::UserWarning $(BIN)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml -o dist/distrust-sbom.json requirements-runtime.lock
	@$(BIN)/python tests/repo/licences.py dist/distrust-sbom.json
	@rm -r dist/commit dist/log && cd dist && sha256sum *

# Wheel and sdist in clean environments, on the oldest and the newest supported Python of this machine.
dist-check: dist
	@$(BIN)/python tests/repo/clean_install.py

# requirements.lock is for work on the project; requirements-runtime.lock is what a party runs with, for its image, with
# any database; requirements-ray.lock is the environment in which sweeps on Ray are tested.
COMPILE := $(BIN)/pip-compile -q --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-find-links \
	    --no-annotate --strip-extras --no-header

lock: $(STAMP)
	$(COMPILE) --extra dev --extra lab --extra mslr --extra postgres -o requirements.lock pyproject.toml
	$(COMPILE) -c requirements.lock --build-deps-for wheel --extra postgres -o requirements-runtime.lock pyproject.toml
	$(COMPILE) -c requirements.lock --build-deps-for wheel --extra lab --extra ray -o requirements-ray.lock pyproject.toml

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
	rm -rf $(VENV) $(RAY) .distrust .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
