"""One kernel for parallel products against one kernel each: `python -m benchmarks.parallel_products`.

Each row is a value [rows, width] multiplied by several matrices with biases, like queries, keys and values.
For every library, and for our kernels, separate calls of each product run in turn with one call of all (where
the backend supports such a region). Times are medians in microseconds, with flushed caches; `merged` is the
time of the best separate calls of any toolchain over that of our one call.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.region_comparison import TimedKernel, measure
from collage.backends.base import Backend, BuildContext
from collage.backends.cpu.blocked import BlockedBackend
from collage.backends.registry import available_backends
from collage.errors import BackendError
from collage.frontend import Function, import_model
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.measure.environment import last_level_cache_bytes
from collage.runtime.arrays import aligned_copy

LIBRARIES = ("onnxruntime", "openvino", "onednn")


@dataclass(frozen=True, slots=True)
class ProductShape:
    """Rows and width of the shared operand, and the width of each result."""

    rows: int
    width: int
    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.rows}x{self.width} to {'+'.join(map(str, self.results))}"


SHAPES = (
    ProductShape(128, 768, (768, 768, 768)),
    ProductShape(128, 512, (512, 128, 128)),
    ProductShape(64, 240, (240,) * 3),
    ProductShape(256, 144, (144,) * 3),
    ProductShape(49, 256, (256, 256)),
    ProductShape(1, 768, (768,) * 3),
)
"""Shapes of BERT, LLaMA with grouped keys, MobileViT, SegFormer, and one token."""


def function_of(shape: ProductShape, folder: Path) -> Function:
    """Return the products with their biases; each is two consecutive nodes."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for number, width in enumerate(shape.results):
        matrix = random.standard_normal((shape.width, width)) / np.sqrt(shape.width)
        for name, values in (("w", matrix), ("b", random.standard_normal(width))):
            weights.append(numpy_helper.from_array(values.astype("float32"), f"{name}{number}"))
        nodes.append(helper.make_node("MatMul", ["x", f"w{number}"], [f"p{number}"]))
        nodes.append(helper.make_node("Add", [f"p{number}", f"b{number}"], [f"y{number}"]))
    results = [f"y{number}" for number in range(len(shape.results))]
    graph = helper.make_graph(
        nodes, "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, shape.rows, shape.width))],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in results], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def benchmark_targets(function: Function, backends: list[Backend]) -> Iterator[TimedKernel]:
    """Yield the kernels of each backend for all products, separate and merged."""
    everything = function.graph.everything
    pairs = [0b11 << first for first in range(0, everything.bit_length(), 2)]
    for backend in backends:
        variant = backend.variants[0]
        for label, regions in (("each", pairs), ("all", [everything])):
            try:
                calls = [_call(function, backend, variant, region) for region in regions]
            except BackendError:
                continue
            yield TimedKernel(f"{backend.name} {label}", partial(_run_all, calls), [])


def _run_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _call(
    function: Function, backend: Backend, variant: str, region: IndexSet
) -> Callable[[], object]:
    names, results = region_values(function, region)
    call, _ = callable_kernel(backend.compile(function, region, BuildContext(1), variant), 1)
    arrays = [np.ones(function.graph.types[name].shape, np.float32) for name in (*names, *results)]
    tensors = as_tensors([aligned_copy(array) for array in arrays])
    return lambda: call(*tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description="Parallel products: one kernel against several.")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    arguments = parser.parse_args()
    backends = available_backends((*LIBRARIES, BlockedBackend.name))
    sweep = np.ones(last_level_cache_bytes() * 3 // 2 // 8, np.uint64)
    for number, shape in enumerate(SHAPES):
        with tempfile.TemporaryDirectory() as folder:
            targets = list(benchmark_targets(function_of(shape, Path(folder)), backends))
            if number == 0:
                print(
                    f"{'':<26}"
                    + "".join(f"{target.name:>18}" for target in targets)
                    + f"{'merged':>9}"
                )
            measure(targets, sweep, arguments.seconds)
            own_name = f"{BlockedBackend.name} all"
            own = min(target.microseconds for target in targets if target.name == own_name)
            separate = min(
                target.microseconds for target in targets if target.name.endswith(" each")
            )
            times = "".join(f"{target.microseconds:>18.0f}" for target in targets)
            print(f"{shape!s:<26}{times}{separate / own:8.2f}x", flush=True)


if __name__ == "__main__":
    main()
