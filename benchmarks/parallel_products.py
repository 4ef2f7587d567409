"""One kernel for parallel products against one each: `python -m benchmarks.parallel_products`.

Each row is a value [rows, width] that several matrices with biases multiply, as queries, keys and
values. For every library, and for our kernels, three calls of one product each run in turn with one
call of all (where the backend takes such a region). Times are medians in microseconds, caches swept
before each; `merged` is the best three calls of any toolchain over our one call.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.winograd import Contender, measure
from collage.backends.base import Backend
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
class Shape:
    """Rows and width of the shared operand, and the width of each result."""

    rows: int
    width: int
    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.rows}x{self.width} to {'+'.join(map(str, self.results))}"


SHAPES = (
    Shape(128, 768, (768, 768, 768)), Shape(128, 512, (512, 128, 128)), Shape(64, 240, (240,) * 3),
    Shape(256, 144, (144,) * 3), Shape(49, 256, (256, 256)), Shape(1, 768, (768,) * 3),
)  # fmt: skip
"""BERT's, LLaMA's with grouped keys, MobileViT's, SegFormer's, and one token."""


def function_of(shape: Shape, folder: Path) -> Function:
    """Return the products with their biases; each has two nodes, one after the other."""
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
        [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in results], weights,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def contenders(function: Function, backends: list[Backend]) -> Iterator[Contender]:
    """Yield each backend's fastest way to compute all products one by one, and at once."""
    everything = function.graph.everything
    pairs = [0b11 << first for first in range(0, everything.bit_length(), 2)]
    for backend in backends:
        variant = backend.variants[0]
        for label, regions in (("each", pairs), ("all", [everything])):
            try:
                calls = [_call(function, backend, variant, region) for region in regions]
            except BackendError:
                continue
            yield Contender(f"{backend.name} {label}", lambda calls=calls: [c() for c in calls], [])  # type: ignore[misc]


def _call(
    function: Function, backend: Backend, variant: str, region: IndexSet
) -> Callable[[], object]:
    names, results = region_values(function, region)
    call, _ = callable_kernel(backend.compile(function, region, 1, variant), 1)
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
            rivals = list(contenders(function_of(shape, Path(folder)), backends))
            if number == 0:
                print(f"{'':<26}" + "".join(f"{r.name:>18}" for r in rivals) + f"{'merged':>9}")
            measure(rivals, sweep, arguments.seconds)
            own = min(r.microseconds for r in rivals if r.name == f"{BlockedBackend.name} all")
            each = min(r.microseconds for r in rivals if r.name.endswith(" each"))
            times = "".join(f"{rival.microseconds:>18.0f}" for rival in rivals)
            print(f"{shape!s:<26}{times}{each / own:8.2f}x", flush=True)


if __name__ == "__main__":
    main()
