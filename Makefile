# Each target makes its own .venv and installs what it needs; nothing else has to be there but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/demo
SCENARIO ?= mimo-v2-flash-chat
LIVE ?=

.PHONY: demo test lint conformance clean

demo: $(VENV)/.run
	$(BIN)/simkv run $(SCENARIO) --out $(OUT) --force
	@echo
	@echo "The curves: $(OUT)/figures/dashboard.png (all on one page), utilization.png, eviction.png, oom.png, cache.png ..."

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --mpl
	PYTHONWARNINGS=error $(BIN)/pytest -n 2 --nbmake --nbmake-timeout=60 notebooks

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cog --check README.md

# Random cases through the engine's own classes and through simkv, live; the engine's environment is built once, outside
# the tree. A release runs LIVE="--schedules 1500 --operations 3000 --sizings 500".
conformance: $(VENV)/.dev
	$(BIN)/python tests/conformance/live.py --build $(LIVE)
	SIMKV_ORACLE="$${SIMKV_ORACLE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/simkv/sglang-0.5.23}" \
	    $(BIN)/pytest tests/imports/test_launch.py -k still_has_these_flags -rs

clean:
	rm -rf $(VENV) runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What running needs.
$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'simkv needs Python >= 3.11')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# What testing and linting need besides.
$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,dask,torch]'
	touch $@
