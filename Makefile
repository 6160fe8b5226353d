# `make demo` and `make test` need Python 3.10 or newer and make; they install what they use into .venv.
# --no-compile: byte code is made for what is imported, not for everything, which saves a quarter of the time.
PYTHON ?= python3
BIN := .venv/bin

# Container images often forbid byte code: then each process of a run compiles anew all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint parallel serial fuzz clean
.DELETE_ON_ERROR:

demo: .venv/.demo
	$(BIN)/mtpbench run scenarios/quickstart.yaml

# The parallel tests leave a quarter of two cores idle, waiting for servers: enough for mypy beside them.
test: .venv/.test
	$(MAKE) --no-print-directory -j 2 lint parallel
	$(MAKE) --no-print-directory serial

parallel: .venv/.test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not serial"

# These need the machine for themselves.
serial: .venv/.test
	$(BIN)/python -m pytest -q -m serial

# Every reader of foreign bytes with 2000 examples instead of a few.
fuzz: .venv/.test
	HYPOTHESIS_PROFILE=many $(BIN)/python -m pytest -q -n 2 -m fuzz --timeout 3600

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --no-compile -e '.[embedded]'
	touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --no-compile -e '.[test]'
	touch $@
