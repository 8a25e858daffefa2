# Needs only a Python from 3.11 on (set PYTHON=... to choose one). `make up MODEL=./my-model` serves a model.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo check test lint up bench docs screenshots audit clean

$(STAMP): pyproject.toml server/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; install one or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e server
	@touch $@

demo: $(STAMP)
	$(BIN)/actograph demo

# before every commit: the unit tier without tests that start a server or take seconds
check: lint
	$(BIN)/python -m pytest tests/unit -m "not integration" -n logical --maxprocesses 4 --dist worksteal

# in several processes; each keeps a model and servers of its own, so more than four ask for much memory
test: $(STAMP)
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --reruns 1 -raR

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

# renews docs/pictures from a run on the demo's model; needs chromium and the package playwright
screenshots: $(STAMP)
	$(BIN)/python -m docs.screenshots

# a bill of materials, then known vulnerabilities; fails if a package cannot be looked up
audit: $(STAMP)
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/python -m pip install \
		--quiet --disable-pip-version-check 'pip-audit>=2.9' 'cyclonedx-bom>=6'; }
	@mkdir -p build
	.venv-audit/bin/cyclonedx-py environment $(BIN)/python -o build/sbom.json
	$(BIN)/python -m pip freeze --exclude-editable > build/packages.txt
	.venv-audit/bin/pip-audit --strict -r build/packages.txt --no-deps --disable-pip --progress-spinner off

clean:
	rm -rf $(VENV)
