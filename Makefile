# make demo       what makeway does, on this machine      make check      format, lint, types, import contract
# make test       the test suite                          make bench      benchmarks: they print, and never fail
# make test-long  the sweeps that `make test` leaves out  make docs       the documentation as a site in site/
# make walks      how commands walk through the bands     make map        docs/control-map.csv and .svg: 5 minutes
# make planner-map  the planner beside the control map   make mutate     which broken sources no test notices
# Each target makes .venv and installs what it needs. TESTS=PATH and PYTEST=OPTIONS narrow a test run; MUTATE=OPTIONS a run of mutants.

PYTHON ?= python3
VENV := .venv
unexport PYTHONDONTWRITEBYTECODE  # every command would compile its modules anew
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PARALLEL := -n auto --dist loadscope  # a module's tests on one worker: its fixtures are made once

.PHONY: setup demo test test-long check format bench docs walks map planner-map mutate clean

setup: $(VENV)/.dev

$(VENV)/.core: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing makeway into $(VENV) ..." >&2
	@$(PIP) install -c constraints.txt -e .
	@$(BIN)/python -m compileall -q src  # or every command would, where Python may write no bytecode
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing test tools and reference packages into $(VENV) (some 400 MB, once) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@$(PIP) install --no-deps megatron-core==0.16.1  # only its reader of options; its dependencies are gigabytes
	@scripts/system-packages
	@touch $@

$(VENV)/.demo: $(VENV)/.core
	@echo "installing torch and plotly into $(VENV) (some 300 MB, once) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[torch,report]'
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/makeway demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(PYTEST) $(TESTS)

test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) -m long $(PYTEST) $(TESTS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	@for script in benchmarks/bench_*.py; do $(BIN)/python $$script; done

$(VENV)/.docs: $(VENV)/.core
	@echo "installing the documentation tools into $(VENV) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/docs

walks: $(VENV)/.dev
	@$(BIN)/python scripts/walks --check

map: $(VENV)/.dev
	@$(BIN)/python scripts/control_map.py

planner-map: $(VENV)/.dev
	@$(BIN)/python scripts/planner_map.py

mutate: $(VENV)/.dev
	@$(BIN)/python scripts/mutate $(MUTATE)

clean:
	rm -rf $(VENV) build site makeway-demo.html .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
