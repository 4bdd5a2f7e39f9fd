PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPSS := $(shell command -v runcompss)
# The release of PyTorch: pinned, oldest or newest of those that pyproject.toml allows, or the pinned one's build for CPUs.
TORCH ?= pinned
FASHION_MNIST ?= /usr/share/datasets/fashion-mnist

SEEDS ?= 300
FIRST ?= 0
DRAWN = $(if $(DRAWS),--hypothesis-seed=$(DRAWS))

TORCH_pinned :=
TORCH_cpu :=
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_oldest := s/^torch==.*/torch==$(shell sed -n 's/.*"torch>=\([0-9.]*\).*/\1/p' pyproject.toml).*/
TORCH_newest := /^torch==/d

.PHONY: demo install test simulate lint docs tutorials wheel extras recipes bench clean

# Installs what the demo needs, and no tools for tests, pages and lint. On Linux without a GPU: make demo TORCH=cpu
demo: $(VENV)/demo
	@if [ -d "$(FASHION_MNIST)" ]; then \
		$(BIN)/python apps/fashion_mnist.py --data "$(FASHION_MNIST)" --workers 2; \
	else \
		echo "No Fashion-MNIST in $(FASHION_MNIST) (Debian: apt install dataset-fashion-mnist); training on digits."; \
		$(BIN)/python apps/digits.py --workers 2; \
	fi

# Into the environment of $(PYTHON), with extras by `make install EXTRAS=online,report`. Modules that an earlier build
# has left would be installed, too.
install:
	rm -rf build/lib build/bdist.*
	$(PYTHON) -m pip install '.$(if $(EXTRAS),[$(EXTRAS)])'

# With CPU=avx2 or CPU=sse, the last line alone runs, with the instructions of an older processor and without the tests
# that no rounding can change (WITHOUT_ARITHMETIC in tests/instruction_sets.py). DRAWS=1, or another number,
# draws the same examples of laws in each run.
#
# Applications of COMPSs take all cores, and have the machine to themselves; without COMPSs these tests are skipped
# among all others. Two processes would start two clusters of Ray. Tests are compiled once, wherever they are run. They
# wait for a third of their time, so that three at a time keep two cores busy.
test: $(VENV)/installed
ifndef CPU
	$(if $(COMPSS),$(BIN)/python -m pytest $(DRAWN) tests/compss)
	$(BIN)/python -m tests.emulated_gpu $(DRAWN) tests/gpu
	$(BIN)/python -m pytest $(DRAWN) --engines ray -k ray tests/ray tests/engines/test_conformance.py tests/engines/test_neighbours.py
endif
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m $(if $(CPU),tests.instruction_sets $(CPU),pytest) $(DRAWN) --numprocesses 3 --dist worksteal --ignore tests/ray --ignore tests/gpu $(if $(COMPSS),--ignore tests/compss)

# Fits with faults, from the seed FIRST on; a seed that fails is printed as a test.
simulate: $(VENV)/installed
	$(BIN)/python -m tests.simulation $(SEEDS) $(FIRST)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd benchmarks && MYPYPATH=.. ../$(BIN)/mypy --config-file ../pyproject.toml --allow-untyped-calls --follow-imports silent *.py
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lint_waits
	$(BIN)/python -m tests.lint_density compss_train benchmarks apps
	$(BIN)/python -m tests.lint_path

docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# In a folder of their own, as they write files.
tutorials: $(VENV)/installed
	rm -rf build/tutorials && mkdir -p build/tutorials && cp docs/tutorials/*.ipynb build/tutorials
	cd build/tutorials && PYTHONWARNINGS=ignore:IProgress ../../$(BIN)/jupyter execute \
		--NotebookClient.record_timing=False --inplace *.ipynb && cp *.ipynb ../../docs/tutorials

wheel:
	rm -rf build/wheel dist && $(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet build && build/wheel/bin/python -m build --outdir dist

# The wheel in a fresh environment, outside the checkout; then each extra.
extras: wheel
	rm -rf build/wheel && $(PYTHON) -m venv build/wheel && mkdir build/wheel/empty
	build/wheel/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	cp packaging/try_wheel.py build/wheel && cd build/wheel/empty && ../bin/python ../try_wheel.py train
	cd build/wheel/empty && ../bin/python ../try_wheel.py extras $$(ls $(CURDIR)/dist/*.whl) --constraint $(CURDIR)/constraints.txt

# Images and packages, as far as this machine has the tools, from what `make wheel` has left in dist/.
recipes:
	packaging/try_recipes.sh

bench: $(VENV)/installed
	for bench in benchmarks/[a-z]*.py; do $(BIN)/python $$bench || exit 1; done

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	sed -e '$(TORCH_$(TORCH))' constraints.txt > $(VENV)/constraints.txt
	$(if $(filter cpu,$(TORCH)),$(BIN)/pip install --constraint $(VENV)/constraints.txt --index-url $(TORCH_CPU_INDEX) torch)
	$(BIN)/pip install --constraint $(VENV)/constraints.txt --editable '.[sklearn]'
	touch $@

$(VENV)/installed: $(VENV)/demo
	$(BIN)/pip install --constraint $(VENV)/constraints.txt --editable '.[apps,docs,test,lint]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
