# Everything runs in .venv, made on first use and again when the dependencies change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test clean

demo: $(READY)
	@$(BIN)/jpc train

test: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -n 2 --dist loadfile

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt -e '.[train,dev]'
	@touch $@
