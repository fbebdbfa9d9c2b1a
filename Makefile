# Two commands do everything on a fresh machine: `make demo` and `make test`. PYTHON picks the interpreter (3.11+).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_ENV := PIP_DISABLE_PIP_VERSION_CHECK=1
# A venv that others made, or one for another interpreter, is remade when these files change.
STAMP := $(VENV)/.kvwaybill-installed

.PHONY: demo test check bench docs fuzz clean help

help:
	@echo "make demo   set up and prove the two-GPU split on a tiny model that speaks (no GPU, no download of models)"
	@echo "make test   set up, then lint, types, import rules and the whole test suite"
	@echo "make bench  set up, then the benchmarks (slow; writes tables under benchmarks/results)"
	@echo "make docs   set up with mkdocs, then the docs as a site under site/"
	@echo "make fuzz   set up with atheris, then a minute of coverage-guided fuzzing for every reader"
	@echo "make clean  remove the virtual environment and caches"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvwaybill needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_ENV) $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# Where PYTHONDONTWRITEBYTECODE is set, every command would compile the sources anew: a third of a second each.
	$(BIN)/python -m compileall -q fleet planner executor scenarios
	@touch $@

demo: $(STAMP)
	$(BIN)/kvwaybill prove two-gpu-words

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n 2

bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py --out benchmarks/results/startup.md
	$(BIN)/python benchmarks/fleet_scale.py --out benchmarks/results/fleet_scale.md
	$(BIN)/python benchmarks/place.py --out benchmarks/results/place.md

docs: $(STAMP)
	$(PIP_ENV) $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --strict

fuzz: $(STAMP)
	$(PIP_ENV) $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	for target in $$($(BIN)/python -m tests.fuzz.coverage --list); do \
	  $(BIN)/python -m tests.fuzz.coverage $$target -max_total_time=60 || exit 1; \
	done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fleet planner executor scenarios tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
