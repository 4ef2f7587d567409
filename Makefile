# Two commands set up a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVICES := $(VENV)/.services
PLUGIN := collage/runtime/lib/libcollage_runtime.so
PIP := $(BIN)/pip install -q -c constraints.txt
CUDA_WHEELS := nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cublas
# Another one where the checkout's own environment cannot be made (no network).
GPU_PYTHON ?= $(BIN)/python

.PHONY: setup demo test lint types bench cuda-check gpu-check clean

setup: $(PLUGIN)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core cmake ninja
	$(PIP) --no-build-isolation -C wheel.cmake=false -e ".[dev,demo]"
	$(PIP) --no-deps rapidocr rapidocr-onnxruntime
	touch $@

# Prefect, MLflow and the like: the demo needs none of it.
$(SERVICES): $(STAMP)
	$(PIP) --no-build-isolation -C wheel.cmake=false -e ".[dev,services]"
	touch $@

$(PLUGIN): $(STAMP) $(wildcard native/*)
	$(BIN)/cmake -S native -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DCMAKE_INSTALL_PREFIX=$(CURDIR)
	$(BIN)/cmake --build build/native
	$(BIN)/cmake --install build/native

demo: setup
	$(BIN)/python examples/ocr_demo.py

test: setup $(SERVICES)
	$(BIN)/python -m pytest

lint: setup $(SERVICES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup $(SERVICES)
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks.models --output benchmarks/RESULTS.md

# Compile everything that is generated for a GPU, on a machine without one (2.3 GB of compilers). CUTLASS's
# wheel asks for a Python package that its headers do not need.
cuda-check: setup
	$(PIP) $(CUDA_WHEELS)
	$(PIP) --no-deps nvidia-cutlass
	$(BIN)/python -m pytest tests/backends/nvidia

# On a machine with a GPU: the tests that need one, and the benchmark; less than 9 minutes, no network.
gpu-check:
	$(GPU_PYTHON) -m benchmarks.gpu --output benchmarks/RESULTS-gpu.md

clean:
	rm -rf build $(VENV) collage/runtime/lib
