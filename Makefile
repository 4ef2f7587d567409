# Two commands set up a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test lint types bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt scikit-build-core cmake ninja apache-tvm apache-tvm-ffi onednn-devel-cpu-gomp openvino
	$(BIN)/pip install -q -c constraints.txt --no-deps rapidocr rapidocr-onnxruntime
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -r requirements-dev.txt
	$(BIN)/cmake -S native -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_INSTALL_PREFIX=$(CURDIR) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
	$(BIN)/cmake --build build/native
	$(BIN)/cmake --install build/native
	touch $@

demo: setup
	$(BIN)/python examples/ocr_demo.py

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/pyright

bench: setup
	$(BIN)/python -m benchmarks.models --output benchmarks/RESULTS.md

clean:
	rm -rf build $(VENV) collage/runtime/lib
