# make demo | make test | make env | make check | make test-all | make constraints | make bench | make clean
PYTHON := python3
VENV := .venv
EXTRAS := coordinator,flower,dpsgd,dev
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMMA := ,
EXTRAS_OF_UV = $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS)))
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-all check env constraints bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

demo: $(STAMP)
	$(BIN)/undersong simulate examples/clinic/task.toml --out runs/clinic

test: check
	$(BIN)/python -m pytest

test-all: check
	$(BIN)/python -m pytest -m ''

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.cycles
	$(BIN)/python -m tests.documents

# Resolves the exact versions for every supported Python from pyproject.toml, without downloading what they name. Versions that
# still fit stay; `make constraints UPGRADE=--upgrade` takes the newest.
constraints: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate $(UPGRADE) \
		$(EXTRAS_OF_UV) --output-file constraints.txt pyproject.toml

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) runs results
