# make setup    virtual environment, dependencies, native library (every other target does this first)
# make test     all tests, sanitizers, emulated AVX-512       make check   format, lint, types, tree gate
#               whole test files on two workers; JOBS=0: one after the other, in this process
# make demo     plain against slim: a table and a page         make bench   the codec table of docs/results
# make docs     run the examples of README and docs           make size    lines per folder
# make clean    remove what was built (the environment stays: rm -rf .venv)
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
READY := build/native/.ready
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: setup native test asan emulated check demo bench docs size clean
setup native: $(READY)

$(VENV)/.ready: pyproject.toml tools/setup.sh
	PYTHON="$(PYTHON)" sh tools/setup.sh $(VENV)
	touch $@

$(READY): $(VENV)/.ready CMakeLists.txt $(wildcard csrc/*)
	$(PY) -m cmake -S . -B build/native -DCMAKE_INSTALL_PREFIX=src
	$(PY) -m cmake --build build/native --parallel 2 && $(PY) -m cmake --install build/native
	touch $@

test: $(READY)
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(ARGS)
	$(MAKE) asan emulated

asan: $(READY)
	PYTHON=$(CURDIR)/$(PY) sh tests/csrc/run_asan.sh

emulated: $(READY)
	if [ "$$(uname -m)" = x86_64 ]; then PYTHON=$(CURDIR)/$(PY) sh tests/csrc/run_emulated.sh -q; fi

check: $(READY)
	$(PY) -m ruff format --check . && $(PY) -m ruff check .
	$(PY) -m pyright
	$(PY) tools/check_tree.py

demo: $(READY)
	$(PY) -m slimgrad compare resnet18 --set width=0.25 --steps 100 --batch 64 --lr 0.05 --test-every 25 --seeds 1 \
	  --audits 2 --threads 1 --out out/demo

bench: $(READY)
	$(PY) bench/codecs.py --json docs/results/codecs.json --csv docs/results/codecs.csv

docs: $(READY)
	$(PY) -m pytest tests/test_docs.py

size: $(READY)
	$(PY) tools/size.py

clean:
	rm -rf build dist out .pytest_cache .ruff_cache .hypothesis
	rm -f src/slimgrad/*slimgrad_native.*
