# `make demo` and `make test` need Python 3.10 or newer and make; they install what they use into .venv.
#
#   make demo PYTHON=python3.12     with another Python than python3; .venv is made anew if it holds another one
#   make test KERNEL=0              without torch and triton, and without the tests that need them
#   make test TORCH_INDEX=URL       a CPU build of torch, from an index or a folder of wheels
#   make test RESOLUTION=lowest-direct   the lowest versions that pyproject.toml allows
BIN := .venv/bin
ifeq ($(origin PYTHON),undefined)
# Unless told otherwise, a .venv that works is kept, whichever Python made it.
PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
endif
KERNEL ?= 1
export KERNEL TORCH_INDEX RESOLUTION

# Container images often forbid byte code: then each process of a run compiles anew all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint parallel serial fuzz clean python install-demo install-test

demo: install-demo
	$(BIN)/mtpbench run scenarios/quickstart.yaml

# The parallel tests leave a quarter of two cores idle, waiting for servers: enough for mypy beside them.
test: install-test
	$(MAKE) --no-print-directory -j 2 lint parallel
	$(MAKE) --no-print-directory serial
	@$(BIN)/python -c 'import importlib.util as u; u.find_spec("torch") or print("Not run: the tests that need torch.")'

parallel: install-test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not serial"

# These need the machine for themselves.
serial: install-test
	$(BIN)/python -m pytest -q -m serial

# Every reader of foreign bytes with 2000 examples instead of a few.
fuzz: install-test
	HYPOTHESIS_PROFILE=many $(BIN)/python -m pytest -q -n 2 -m fuzz --timeout 3600

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $$($(BIN)/python -c 'import importlib.util as u; u.find_spec("torch") or print("-p harness -p dashboards")')
	$(BIN)/lint-imports

install-demo install-test: install-%: python
	@$(PYTHON) ci/install.py $*

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  found=; for p in python3.13 python3.12 python3.11 python3.10; do \
	    if "$$p" -c '' 2>/dev/null; then found=$$p; break; fi; done; \
	  echo "$$($(PYTHON) --version 2>&1) is too old: Python 3.10 or newer is needed (make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=$${found:-python3.12})" >&2; \
	  exit 1; }

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
