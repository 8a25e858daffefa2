# Needs only a Python from 3.11 on (set PYTHON=... to choose one). `make up MODEL=./my-model` serves a model.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo check test soak lint up bench docs clean

$(STAMP): pyproject.toml server/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; install one or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e server
	@touch $@

demo: $(STAMP)
	$(BIN)/actograph demo

PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4

# before every commit: no server, no model above 300,000 parameters
check: lint
	$(PYTEST) --dist worksteal -m "not soak and not integration" tests/unit

# each process keeps a model and servers of its own, so more than four need much memory
test: $(STAMP)
	$(BIN)/python -m tests.support.other_programs inspect lm-eval
	$(PYTEST) --dist worksteal -m "not soak"

# before a release, and when a change touches its subject
soak: $(STAMP)
	$(BIN)/python -m tests.support.other_programs inspect lm-eval swift
	$(PYTEST) --dist loadfile -m soak

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

up: $(STAMP)
	$(BIN)/actograph up $(if $(MODEL),--model $(MODEL))

bench: $(STAMP)
	$(BIN)/python -m bench

# writes the generated pages and builds the site into site/
docs: $(STAMP)
	$(BIN)/python -m docs.generate
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV)
