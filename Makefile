# Needs only a Python from 3.11 on (set PYTHON=... to choose one). `make up MODEL=./my-model` serves a model.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# the demo compiles what it imports; compiling all modules made `make demo` half as long again
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
SERVICE := $(VENV)/.service
DEV := $(VENV)/.dev

.PHONY: demo check test soak lint up bench docs screenshots clean

# PyTorch's own index has a torch for Linux without gigabytes of CUDA; if it cannot be reached, pip's index decides
CPU_INDEX := https://download.pytorch.org/whl/cpu
NEEDS_CPU_TORCH = [ "$$(uname)" = Linux ] && [ ! -e /proc/driver/nvidia ] && ! command -v nvidia-smi >/dev/null \
	&& $(BIN)/python -c 'import urllib.request as u; u.urlopen("$(CPU_INDEX)/torch/", timeout=5)' 2>/dev/null

$(SERVICE): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; install one or say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing the service and torch into $(VENV): about 350 MB of packages, 3 GB with CUDA"
	@if $(NEEDS_CPU_TORCH); then $(PIP) --extra-index-url $(CPU_INDEX) torch || echo "make: no torch from $(CPU_INDEX); pip's own index decides" >&2; fi
	@$(PIP) -e '.[service]'
	@touch $@

$(DEV): $(SERVICE)
	@echo "Installing the tools for tests and docs into $(VENV)"
	@$(PIP) -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages have files for other Pythons
	@touch $@

demo: $(SERVICE)
	@echo "Starting the demo"
	@$(BIN)/actograph demo

PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4

# before every commit: no server, no model above 300,000 parameters
check: lint
	$(PYTEST) --dist worksteal -m "not soak and not integration" tests/unit

# each process keeps a model and servers of its own, so more than four need much memory
test: $(DEV)
	$(BIN)/python -m tests.support.other_programs inspect lm-eval
	$(PYTEST) --dist worksteal -m "not soak"

# before a release, and when a change touches its subject
soak: $(DEV)
	$(BIN)/python -m tests.support.other_programs agents dstack inspect instructor langchain litellm \
		lm-eval sae sky swift
	$(PYTEST) --dist loadfile -m soak

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --deny-warnings --ignore-pattern '*.min.js' api/pages/static actograph/viewer/static
	$(BIN)/mypy

up: $(SERVICE)
	$(BIN)/actograph up $(if $(MODEL),--model $(MODEL))

bench: $(DEV)
	$(BIN)/python -m bench

# makes the pages of the reference and builds the site into site/
docs: $(DEV)
	$(BIN)/python -m docs.generate
	$(BIN)/python -m mkdocs build --strict

# makes the pictures of the page in docs/images anew; needs chromium
screenshots: $(DEV)
	$(BIN)/python -m docs.screenshots

clean:
	rm -rf $(VENV)
