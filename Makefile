# `make run` and `make test` are all that a new machine needs: Python 3.11 or newer, and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
APART := $(abspath $(VENV))/apart
LOWEST := $(abspath $(VENV))/lowest
CONSUMERS := $(abspath $(VENV))/consumers
LLAMAFACTORY := $(abspath $(VENV))/llamafactory
AXOLOTL := $(abspath $(VENV))/axolotl
LAUNCHERS := $(abspath $(VENV))/launchers
PAGE := $(abspath $(VENV))/page
CUDA := $(abspath $(VENV))/cuda-build
CUDA_PYTHON ?= python3.12
VERSIONED := tests/estimation tests/exports tests/memory tests/models tests/numerics tests/tracing tests/worker
SIDE_BY_SIDE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=4 --dist=worksteal
# Tests of deadlines and of processes that end wait more than they compute: three processes took 1.6 of two cores.
TWO_MORE := --numprocesses=$(shell echo $$(($$(nproc) + 2)))
LONG := $(BIN)/python -m tests.long_record
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes import the same files. Each would compile them anew, and pytest rewrite the asserts of all tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run environments test side-by-side style types test-long long apart consumers test-consumers test-page test-cluster cluster-deps check-record test-versions test-cuda-build coverage test-fast test-stability test-gpu gpu-wheels fuzz lint format clean

run: $(VENV)/ready  ## the main job on this machine's CPU, with a real model
	$(BIN)/autotune run --model gpt2 --seq-len 128 --target-global-batch 8K --device cpu:3GiB \
		--sample-time 3s --proof-time 15s --max-probes 5

environments: $(VENV)/ready $(APART)/ready

test: style  ## what needs no GPU, in ten minutes; what compares speeds comes last and one by one
	$(MAKE) --jobs=2 types side-by-side
	$(BIN)/python -m pytest -m "alone and not long" tests/e2e

side-by-side: $(VENV)/ready
	$(SIDE_BY_SIDE) $(TWO_MORE) -m "not gpu and not alone and not long and not cluster"

# SECONDS of the clock choose what fits: first what the record does not hold, then what passed longest ago. Results get
# their name when all has passed: of tests that were interrupted, some would else stand for the whole part.
test-long: $(APART)/ready  ## the rest that needs no GPU (minutes a file, DeepSpeed, torchao), with a record of it
	$(LONG) begin build/long $(SECONDS)
	$(MAKE) --jobs=2 long apart
	files=$$($(LONG) picked alone build/long) && { test -z "$$files" || { \
		$(BIN)/python -m pytest -m "alone and long" --junit-xml=build/long/alone.running.xml $$files && \
		mv build/long/alone.running.xml build/long/alone.xml; }; }
	$(LONG) end build/long

long: $(APART)/ready
	files=$$($(LONG) picked long build/long) && { test -z "$$files" || { \
		$(SIDE_BY_SIDE) -m "long and not alone" --junit-xml=build/long/long.running.xml $$files && \
		mv build/long/long.running.xml build/long/long.xml; }; }

# One process more: what it tests waits for ranks and for a compiler.
apart: $(APART)/ready
	folders=$$($(LONG) picked apart build/long) && { test -z "$$folders" || { \
		PYTHONPATH=$(APART) DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" \
		-k "float8 or deepspeed" --junit-xml=build/long/apart.running.xml $$folders && \
		mv build/long/apart.running.xml build/long/apart.xml; }; }

consumers: $(CONSUMERS)/ready $(LLAMAFACTORY)/ready $(AXOLOTL)/ready $(LAUNCHERS)/ready  ## the libraries that exports are for, pinned, in folders of their own (1.4 GiB)

test-consumers: consumers  ## what is exported, validated and trained by the libraries that it is for
	PYTHONPATH=$(CONSUMERS) DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m consumers tests/consumers

test-page: $(VENV)/ready $(PAGE)/ready  ## pages in Chromium (Debian: chromium nodejs npm): console, network, axe, screenshots
	PAGE_MODULES=$(PAGE) $(BIN)/python -m pytest -m page tests/page

check-record: $(VENV)/ready  ## whether test-long's record, tests/long_record.json, is of the code as it stands
	$(LONG) check

test-versions: $(LOWEST)/ready  ## what builds models, with the lowest transformers promised; wheels for Python 3.12
	PYTHONPATH=$(LOWEST) $(SIDE_BY_SIDE) -m "not gpu and not alone and not long and not cluster" $(VERSIONED)
	$(BIN)/python -m pip install --dry-run --quiet --ignore-installed --only-binary=:all: --python-version 3.12 \
		--target $(VENV)/3.12 --constraint constraints.txt '.[dev]'

# A Python without autotune (CUDA_PYTHON, 3.12), and the wheels that it lacks. Too large for CI: 720 MB to fetch, 2 GB on disk.
test-cuda-build: $(CUDA)/ready gpu-wheels  ## torch's CUDA build without a GPU: the same bytes traced, the evidence's dry run
	CUDA_PYTHON=$(CUDA)/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cuda_build tests/cuda_build

coverage: $(VENV)/ready  ## the lines of autotune that the tests of make test run, workers included
	rm -rf build/coverage && mkdir -p build/coverage
	$(SIDE_BY_SIDE) --cov --cov-report=term -m "not gpu and not alone and not long and not cluster"

test-fast: $(VENV)/ready  ## without the tests that train for more than a few seconds
	$(SIDE_BY_SIDE) -m "not gpu and not slow and not alone and not cluster"

test-cluster: $(VENV)/ready  ## what needs a cluster's programs, which cluster-deps installs; the tests start and end them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster tests/cluster

# Debian's packages (as root), and what autotune needs of Python to speak with them.
cluster-deps: $(VENV)/ready  ## Slurm, PostgreSQL and its driver, Ray
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge postgresql
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[postgresql,ray]'

test-stability: $(VENV)/ready  ## the tests of supervisors, ranks and timeouts, 50 times beside a busy process: two hours
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.stability --times 50

# For a machine that has Python 3.12, torch and transformers, and no network: benchmarks/gpu_evidence.py --wheels.
gpu-wheels: $(VENV)/ready  ## the wheels that such a machine lacks, in build/gpu-wheels (MAX_SIZE: MiB, 48)
	$(BIN)/python -m benchmarks.gpu_wheels --max-size $(or $(MAX_SIZE),48)

test-gpu: $(VENV)/ready  ## what needs an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

fuzz: $(VENV)/ready  ## FUZZ_EXAMPLES (100,000) odd inputs from FUZZ_SEED (0): codes as documented, no traceback
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.fuzz

lint: style types

style: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy autotune benchmarks

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "autotune needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores, as pip does not; not all files are Python 3
	touch $@

# Libraries of extras that others import wherever they find them: torchao costs every worker 11 MiB and 0.3 s.
$(APART)/ready: $(VENV)/ready
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(APART) \
		torchao deepspeed einops hjson msgpack ninja py-cpuinfo
	touch $@

# What exports are for. Beside the environment and without dependencies: these would bring CUDA builds and other pins.
$(CONSUMERS)/ready: $(VENV)/ready consumers.txt
	rm -rf $(CONSUMERS)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --no-deps --target $(CONSUMERS) --requirement consumers.txt
	touch $@

# What starts exports elsewhere, by its own readers: they share nothing with what trains, so with all their dependencies.
$(LAUNCHERS)/ready: $(VENV)/ready
	rm -rf $(LAUNCHERS)
	$(BIN)/python -m venv $(LAUNCHERS)
	$(LAUNCHERS)/bin/python -m pip install --quiet skypilot==0.14.1 kubernetes-validate==1.37.0
	touch $@

$(LLAMAFACTORY)/ready: $(VENV)/ready llamafactory.txt
	rm -rf $(LLAMAFACTORY)
	$(BIN)/python -m pip install --quiet --no-deps --target $(LLAMAFACTORY) --requirement llamafactory.txt
	touch $@

$(AXOLOTL)/ready: $(VENV)/ready tests/consumers/axolotl.txt
	rm -rf $(AXOLOTL)
	$(BIN)/python -m pip install --quiet --no-deps --target $(AXOLOTL) --requirement tests/consumers/axolotl.txt
	touch $@

$(PAGE)/ready: $(VENV)/ready tests/page/package.json
	mkdir -p $(PAGE) && cp tests/page/package.json $(PAGE)
	npm install --prefix $(PAGE) --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error
	touch $@

# Newer versions lie in the environment; what is found first is imported.
$(LOWEST)/ready: $(VENV)/ready lowest.txt
	rm -rf $(LOWEST)
	$(BIN)/python -m pip install --quiet --no-deps --target $(LOWEST) --requirement lowest.txt
	touch $@

# CUDA's own libraries are gigabytes, and without a GPU nothing in them could run: torch only has to find their functions.
$(CUDA)/ready: $(VENV)/ready cuda.txt tests/cuda_build/stub_libraries.py
	rm -rf $(CUDA)
	$(CUDA_PYTHON) -m venv $(CUDA)
	$(CUDA)/bin/python -m pip install --quiet --no-compile --no-deps --requirement cuda.txt
	$(BIN)/python tests/cuda_build/stub_libraries.py $(CUDA)/lib/python3.*/site-packages
	$(CUDA)/bin/python -c 'import torch; assert torch.version.cuda, torch.__version__'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
