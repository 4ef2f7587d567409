"""All code generated for a GPU compiles with nvcc, without a GPU."""

import subprocess
from pathlib import Path

import pytest

from collage.backends.base import BuildContext
from collage.backends.nvidia.architecture import DEFAULT
from collage.backends.nvidia.compiler import (
    CudaSource,
    compile_cuda,
    cutlass_include,
    find_nvcc,
)
from collage.backends.nvidia.cublas import CublasBackend
from collage.backends.nvidia.cutlass import SHARED, CutlassBackend
from collage.backends.nvidia.cutlass.source import CUTLASS_SYMBOL, TILES
from collage.backends.nvidia.libraries import wheel_folders
from collage.backends.nvidia.tvm_cuda import TvmCudaBackend
from collage.errors import BackendError
from collage.runtime.blob import unpack
from tests.backends.nvidia import cudnn_models as models
from tests.backends.nvidia.layer import TYPES, layer, nodes_of

NATIVE = Path(__file__).parents[3] / "native"
HERE = Path(__file__).parent
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
CUBIN = (f"-arch=sm_{DEFAULT}", "-cubin")
if find_nvcc() is None:
    pytest.skip("no nvcc: make test installs it", allow_module_level=True)

pytestmark = [pytest.mark.full, pytest.mark.slow]
needs_cutlass = pytest.mark.skipif(
    cutlass_include() is None, reason="no CUTLASS headers: make test installs them"
)


def cuda_code(module):
    """Return the CUDA C++ of a scheduled module."""
    from collage.backends.nvidia.tvm_cuda.schedule import cuda_module

    return "\n".join(source.inspect_source() for source in cuda_module(module).mod.imports)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("nvcc")


@pytest.mark.parametrize("variant", TvmCudaBackend.variants)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "ops", [("MatMul", "Add", "Relu"), ("LayerNormalization",), ("Softmax",)], ids="+".join
)
def test_tvm_kernels_compile(tmp_path, cache, dtype, ops, variant):
    function = layer(tmp_path, dtype)
    nodes = nodes_of(function, *ops)
    if (dtype, ops) == ("bfloat16", ("LayerNormalization",)):
        refused = TvmCudaBackend().unsupported(function, nodes.bit_length() - 1)
        assert refused == "TVM's layer normalisation has no bfloat16"
        return
    kernel = TvmCudaBackend().compile(function, nodes, BuildContext(1), variant)
    assert kernel.device == "cuda"
    code = cuda_code(kernel.module)
    assert "__global__" in code
    cubin = compile_cuda(CudaSource(code), ".cubin", CUBIN, cache)
    assert cubin.read_bytes().startswith(b"\x7fELF")


@pytest.fixture(params=ARCHITECTURES)
def other_gpu(request, monkeypatch):
    """A machine with a GPU of another architecture, for code generation."""
    for module in ("cutlass.source", "tvm_cuda.schedule"):
        monkeypatch.setattr(f"collage.backends.nvidia.{module}.architecture", lambda: request.param)
    return request.param


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tvm_kernels_compile_for_other_gpus(tmp_path, cache, other_gpu, dtype):
    """TVM runs nvcc for the given target; the file contains the architecture."""
    function = layer(tmp_path, dtype)
    kernel = TvmCudaBackend().compile(
        function, nodes_of(function, "MatMul", "Add", "Relu"), BuildContext(1), ""
    )
    code = CudaSource(cuda_code(kernel.module))
    file = compile_cuda(code, ".cubin", (f"-arch={other_gpu}", "-cubin"), cache)
    assert architecture_of(file) == int(other_gpu.removeprefix("sm_"))


@needs_cutlass
@pytest.mark.parametrize(
    ("dtype", "variant"),
    [("float32", "64x64"), ("float32", "tf32"), ("bfloat16", "256x128")],
)
def test_cutlass_products_compile_for_other_gpus(tmp_path, cache, other_gpu, dtype, variant):
    function = layer(tmp_path, dtype)
    nodes = nodes_of(function, "MatMul", "Add", "Relu")
    source = CutlassBackend().describe(function, nodes, variant)[0].source()
    assert f"-arch={other_gpu}" in source.flags
    file = compile_cuda(source, ".cubin", ("-cubin",), cache)
    assert architecture_of(file) == int(other_gpu.removeprefix("sm_"))


def architecture_of(cubin):
    """Return the architecture in the flags of a GPU's ELF file: second byte since CUDA 13."""
    flags = int.from_bytes(cubin.read_bytes()[48:52], "little")
    return flags >> 8 & 0xFF if flags & 0xFF in (0, 2, 4, 6) else flags & 0xFF


@needs_cutlass
@pytest.mark.parametrize(
    ("dtype", "ops", "variant"),
    [
        ("float32", ("MatMul", "Add", "Relu"), "64x64"),
        ("float32", ("MatMul",), "256x128"),
        ("float16", ("MatMul", "Add", "Relu"), ""),
        ("bfloat16", ("MatMul",), "64x128"),
        ("float32", ("MatMul", "Add", "Relu"), "tf32-64x64"),
        ("float32", ("MatMul",), "tf32-256x128"),
    ],
)
def test_cutlass_products_compile_and_load(tmp_path, cache, dtype, ops, variant):
    """The library exports a function of tvm-ffi; it can be loaded, and refuses a wrong call."""
    import tvm_ffi

    function = layer(tmp_path, dtype)
    gemm, _ = CutlassBackend().describe(function, nodes_of(function, *ops), variant)
    file = compile_cuda(gemm.source(), ".so", SHARED, cache)
    with pytest.raises(ValueError, match=r"this kernel takes \d tensors, not 0"):
        tvm_ffi.load_module(str(file))[CUTLASS_SYMBOL]()


@needs_cutlass
@pytest.mark.parametrize(
    ("dtype", "activation", "variant"),
    [
        ("float32", "gelu_erf", ""),
        ("float32", "relu", "256x128"),
        ("float32", "sigmoid", "tf32-64x128"),
        ("float16", "swish", ""),
        ("bfloat16", "tanh", "256x128"),
    ],
)
def test_cutlass_convolutions_compile_and_load(tmp_path, cache, dtype, activation, variant):
    import tvm_ffi

    function = models.convolution(tmp_path, dtype, activation)
    template, constants = CutlassBackend().describe(function, function.graph.everything, variant)
    assert [array.shape[0] for array in constants] == [16, 16]
    file = compile_cuda(template.source(), ".so", SHARED, cache)
    with pytest.raises(ValueError, match="this kernel takes 6 tensors, not 0"):
        tvm_ffi.load_module(str(file))[CUTLASS_SYMBOL]()


@needs_cutlass
@pytest.mark.parametrize("dtype", TYPES)
def test_every_tile_has_a_source_of_its_own(tmp_path, dtype):
    function = layer(tmp_path, dtype)
    nodes = nodes_of(function, "MatMul")
    sources = {CutlassBackend().describe(function, nodes, tile)[0].source().text for tile in TILES}
    assert len(sources) == len(TILES)
    assert all("@" not in text for text in sources)


@needs_cutlass
def test_a_batched_product_has_strides(tmp_path):
    function = layer(tmp_path, "float16", batch=3)
    last = 1 << max(n.index for n in function.graph.nodes if n.op == "MatMul")
    gemm, _ = CutlassBackend().describe(function, last, "")
    product = gemm.product
    assert (product.batch, product.left_stride, product.right_stride) == (3, 4096, 4096)
    assert "int64_t(4096), int64_t(4096)" in gemm.source().text


def test_the_declared_interface_of_cublaslt_is_the_real_one():
    nvcc = find_nvcc()
    if not (nvcc.home / "include" / "cublasLt.h").is_file():
        pytest.skip("no cublasLt.h: make cuda-check installs it")
    check_declarations("cublaslt_check.cc", nvcc.home / "include")


def test_the_declared_interface_of_cudnn_is_the_real_one():
    folders = [folder.parent / "include" for folder in wheel_folders("nvidia")]
    with_header = [folder for folder in folders if (folder / "cudnn.h").is_file()]
    if not with_header:
        pytest.skip("no cudnn.h: make cuda-check installs it")
    check_declarations("cudnn_check.cc", with_header[0], find_nvcc().home / "include")


def check_declarations(name, *includes):
    command = ["g++", "-std=c++17", "-w", "-fsyntax-only", *(f"-I{folder}" for folder in includes)]
    done = subprocess.run(
        [*command, f"-I{NATIVE}", str(HERE / name)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr


def test_what_cublas_is_told(tmp_path):
    function = layer(tmp_path, "float16")
    nodes = nodes_of(function, "MatMul", "Add", "Relu")
    kernel = CublasBackend().compile(function, nodes, BuildContext(1), "heuristic-3")
    header, tensors = unpack(kernel.blob)
    fields = {name: header[name] for name in ("dtype", "m", "n", "k", "rank", "activation", "left")}
    assert fields == {
        "dtype": "float16", "m": 64, "n": 64, "k": 64, "rank": 2, "activation": "relu", "left": 0,
    }  # fmt: skip
    assert (header["right"], header["bias"], header["residual"]) == (1, 2, -1)
    assert [tensor.shape for tensor in tensors] == [(64, 64), (64,)]


def test_a_result_is_compiled_once_and_an_error_is_the_compilers(tmp_path):
    source = CudaSource('extern "C" __global__ void one(float* x) { x[0] = 1.0f; }')
    first = compile_cuda(source, ".cubin", CUBIN, tmp_path)
    before = first.stat().st_mtime_ns
    assert compile_cuda(source, ".cubin", CUBIN, tmp_path) == first
    assert first.stat().st_mtime_ns == before
    broken = CudaSource("__global__ void two() { return missing; }")
    with pytest.raises(BackendError, match='identifier "missing" is undefined'):
        compile_cuda(broken, ".cubin", CUBIN, tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".cubin"]
