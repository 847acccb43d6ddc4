# Everything runs in .venv, made on first use and again when the dependencies change. A demo needs
# the command; the tests need the developers' tools too, and the site its own.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt
COMMAND := .venv/.command
TOOLS := .venv/.tools
SITE := .venv/.site

.PHONY: demo test slow faults examples docs site clean

demo: $(COMMAND)
	@$(BIN)/jpc train

test: $(TOOLS)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# What `make test` leaves out: examples and pages that take long, and further cases of its tests.
slow: $(TOOLS)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Disks that are full, folders that vanish, kills: about 15 minutes.
faults: $(TOOLS)
	@$(BIN)/python tests/faults/faults.py
	@$(BIN)/python tests/faults/kill.py

# Runs the examples, and makes their pages and notebooks in docs/examples: a few minutes.
examples: $(COMMAND)
	@$(BIN)/python docs/examples/render.py

# The documentation, in site/. A reference, link or anchor that leads nowhere fails.
docs: $(SITE)
	@$(BIN)/zensical build --strict --clean

site: $(SITE)
	@$(BIN)/zensical serve

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .cache site

$(COMMAND): pyproject.toml constraints.txt
	@echo "Setting up .venv (once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) -e '.[train]'
	@touch $@

$(TOOLS): $(COMMAND)
	@$(PIP) -e '.[train,dev]'
	@touch $@

$(SITE): $(COMMAND)
	@$(PIP) -e '.[train,docs]'
	@touch $@
