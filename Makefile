# Everything runs in .venv, made on first use and again when the dependencies change. A demo needs
# the command; the tests need the developers' tools too.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt
COMMAND := .venv/.command
TOOLS := .venv/.tools

.PHONY: demo test faults clean

demo: $(COMMAND)
	@$(BIN)/jpc train

test: $(TOOLS)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -n 2 --dist loadfile

# Disks that are full, folders that vanish, kills: about 15 minutes.
faults: $(TOOLS)
	@$(BIN)/python tests/faults/faults.py
	@$(BIN)/python tests/faults/kill.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis

$(COMMAND): pyproject.toml constraints.txt
	@echo "Setting up .venv (once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) -e '.[train]'
	@touch $@

$(TOOLS): $(COMMAND)
	@$(PIP) -e '.[train,dev]'
	@touch $@
