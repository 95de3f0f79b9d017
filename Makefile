# Everything runs in .venv, which `make` sets up once. On a machine with another build of torch:
#   make test TORCH="torch>=2.4"
PYTHON ?= python3
TORCH ?= torch==2.13.0
PY := .venv/bin/python
READY := .venv/ready
CHARTS := .venv/charts-ready

# Compiled once, where a shell says otherwise: tests start many processes.
export PYTHONDONTWRITEBYTECODE :=
# torch's threads sleep while they wait for each other: running in circles, they keep loaders from the processors.
export OMP_WAIT_POLICY ?= passive
# In the order of their names, the files that take longest are not the last. Files stay whole, as fixtures are shared.
# One more than most machines of CI have cores: tests wait for processes, disks and each other.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test check fuzz format bench bench-peers clean

$(READY): pyproject.toml
	@echo "setting up .venv: this takes a minute or two, the first time"
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet "$(TORCH)"
	$(PY) -m pip install --quiet -e ".[dev]"
	touch $(READY)

# A small set of .npz samples, the store made from it, and both loaded side by side.
demo: $(READY)
	$(PY) benchmarks/samples.py demo-data/npz --samples 256 --height 128 --width 224
	$(PY) -m mmapload preprocess demo-data/npz demo-data/store --batch-size 32 --overwrite
	$(PY) -m mmapload info demo-data/store
	$(PY) benchmarks/compare_npz.py --source demo-data/npz --store demo-data/store --rounds 3 --settings warm

# As cores are few, torch's threads are not to run in circles while they wait.
test: export OMP_WAIT_POLICY := passive
test: check
	$(PYTEST)

check: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

# What the tests try a little of, at length: 100,000 hostile stores and .npz files each, every byte of small
# stores flipped, each kind of run killed at 100 moments and before every system call, loaders forked 50 times, and
# memory watched over 50 epochs in every order.
fuzz: $(READY)
	MMAPLOAD_FUZZ=100000 MMAPLOAD_FLIPS=1 MMAPLOAD_KILLS=100 MMAPLOAD_FORKS=50 MMAPLOAD_EPOCHS=1 $(PYTEST) -rP \
		tests/test_fuzz_store.py tests/test_fuzz_npz.py tests/test_flipped_bytes.py tests/test_killed.py \
		tests/test_preprocessing_crash.py tests/test_append.py tests/test_cases_training.py tests/test_residency.py \
		tests/test_memory_limit.py

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

$(CHARTS): $(READY)
	$(PY) -m pip install --quiet -e ".[bench]"
	touch $(CHARTS)

# The figures in the README, in about 20 minutes: 2.9 GB of samples are made in bench-data first.
bench: $(CHARTS)
	$(PY) benchmarks/compare_npz.py --json bench-data/compare_npz.json --chart bench-data/compare_npz.png
	$(PY) benchmarks/preprocess_speed.py

# The tables in docs/benchmarks.md, with the projects that are installed in .venv; PEERS_PY names another python.
PEERS_PY ?= $(PY)
bench-peers: $(CHARTS)
	$(PEERS_PY) benchmarks/compare_peers.py --rounds 2 --settings warm limited \
		--json bench-data/compare_peers.json --chart bench-data/compare_peers.png

clean:
	rm -rf demo-data bench-data build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
