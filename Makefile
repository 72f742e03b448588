# make test   everything CI runs, from nothing: sets up .venv, then formats, lints, types and tests
# make quick  a verdict on the core in under a minute: format, lint, golden runs, twins, proxes, rules, state
# make torture  kills, damaged and hostile files, fuzzed arguments, lost processes: minutes; docs/reliability.md
# make docs   the documentation: site/index.html, every link checked
# make demo   trains the small comparison on the embedded digits and writes its report
# make        the same as make test

VENV   := .venv
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# The fast test files of the core; make test runs all of them.
QUICK := tests/optim/test_golden.py tests/optim/test_twin.py tests/optim/test_rules.py tests/optim/test_state.py \
	tests/optim/test_closures.py tests/optim/test_groups.py tests/regularizers/test_prox.py \
	tests/regularizers/test_value.py tests/regularizers/test_arguments.py tests/test_architecture.py tests/test_zeros.py

.PHONY: test quick setup lint types pytest torture docs demo wheel format clean
test: lint types pytest

quick: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q $(QUICK)

setup: $(READY)

# The constraints pin torch: a looser request would fetch gigabytes of CUDA for a CPU test.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[experiments,tensorboard,tests,trainers,docs]'
	touch $@

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# One thread per process: two test processes that each use all cores wait for one another.
# Triton's interpreter does not bear every other test in its process.
INTERPRETED := tests/optim/test_kernels.py tests/optim/test_kernels_budgets.py tests/optim/test_rules.py \
	tests/regularizers/test_selection.py
pytest: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal $(INTERPRETED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal $(INTERPRETED:%=--ignore=%)

torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m torture

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(READY)
	$(BIN)/hatchling build -d dist

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python docs/tools/check_site.py site

# The learning rates were chosen on held-out images; SR2 has none.
demo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/sr2 compare --model cnn --epochs 30 --seeds 0 1 2 --densities 0.1 0.05 0.02 \
		--optimizers sr2 gmp,density=0.1,lr=0.1 gmp,density=0.05,lr=0.1 gmp,density=0.02,lr=1 adamw,lr=3e-3 sgd,lr=0.3 \
		--runs runs/demo

clean:
	rm -rf $(VENV) dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
