# make demo | make test | make env | make check | make test-all | make bench
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-all check env bench clean

env: $(STAMP)

$(STAMP): pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[coordinator,flower,dpsgd,dev]'
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
	$(BIN)/python -m tests.documents

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) runs results
