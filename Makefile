# Two commands for a newcomer: `make audit` and `make test`. Each sets up what it needs in .venv, once.
.POSIX:
PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: audit test lint types tests format clean

audit: $(VENV)/.audit
	$(BIN)/hrx audit bolt-mini

test: lint types tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Type checkers cannot follow the mapping of folders to hrx.*, so they are shown a tree of links that spells it out.
types: $(VENV)/.test
	rm -rf build/types
	mkdir -p build/types/hrx
	for file in common/*; do ln -s ../../../$$file build/types/hrx/; done
	for room in cli adapters audit gift_eval reports; do ln -s ../../../$$room build/types/hrx/; done
	MYPYPATH=build/types $(BIN)/mypy

tests: $(VENV)/.test
	$(BIN)/python -m pytest

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build hrx.egg-info hrx-audit

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("hrx needs Python 3.11 or newer; name one with: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# What the embedded checkpoint and the embedded series need, and nothing else.
$(VENV)/.audit: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt]'
	touch $@

# granite-tsfm pins an older torch than the others run on; without its pins it runs on this one.
$(VENV)/.test: $(VENV)/.audit
	$(PIP) --constraint constraints.txt --editable '.[chronos-bolt,chronos-2,gift-eval,dev]' datasets scikit-learn
	$(PIP) --constraint constraints.txt --no-deps granite-tsfm
	touch $@
