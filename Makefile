# Words, not flags. `make run` to use it, `make test` for everything that a change must pass.
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: check format

check: ## Lint, format, imports, types.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports
	$(PY) -m mypy

format:
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
