"""Matrix products for GPU libraries: extents, batch, transposition, refusals."""

from dataclasses import dataclass
from math import prod

from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import TensorType

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Product:
    """D[batch, m, n] = alpha * A B, row-major; a stride of 0 means one matrix for the whole batch.

    `summand` is the name of Gemm's third operand, "" for none.
    """

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    left_stride: int = 0
    right_stride: int = 0
    left_transposed: bool = False
    right_transposed: bool = False
    alpha: float = 1.0
    summand: str = ""


def read_product(function: Function, index: int) -> Product:
    """Return the product of a MatMul or Gemm.

    Raises:
        BackendError: GPU libraries do not compute it, with the reason.
    """
    node = function.graph.nodes[index]
    left, right = (known_type(function, name) for name in node.inputs[:2])
    if left.dtype not in DTYPES:
        raise BackendError(f"{node.op} computes in {left.dtype}; {', '.join(DTYPES)} are taken")
    if min((*left.shape, *right.shape), default=1) < 1:
        raise BackendError(f"{node.op} of an empty matrix")
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise BackendError(f"{node.op} with a vector")
    if node.op == "Gemm":
        return _gemm(function, index, left, right)
    return _matmul(left, right)


def known_type(function: Function, name: str) -> TensorType:
    """Return the type of a value. Raises BackendError for a data-dependent shape."""
    value_type = function.graph.types.get(name)
    if value_type is None:
        raise BackendError(f"the shape of {name!r} depends on data")
    return value_type


def _matmul(left: TensorType, right: TensorType) -> Product:
    rows, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    if prod(right.shape[:-2]) == 1:
        return Product(left.dtype, prod(left.shape[:-1]), n, k)
    rank = max(len(left.shape), len(right.shape))
    first, second = (
        (1,) * (rank - len(operand.shape)) + operand.shape[:-2] for operand in (left, right)
    )
    batch = max(prod(first), prod(second))
    if first != second and prod(first) != 1:
        raise BackendError("MatMul that broadcasts some of its batch dimensions only")
    return Product(
        left.dtype,
        rows,
        n,
        k,
        batch=batch,
        left_stride=rows * k if prod(first) > 1 else 0,
        right_stride=k * n,
    )


def _gemm(function: Function, index: int, left: TensorType, right: TensorType) -> Product:
    node, attributes = function.graph.nodes[index], node_attributes(function, index)
    transposed = [bool(attributes.integer(name, 0)) for name in ("transA", "transB")]
    summand = node.inputs[2] if len(node.inputs) > 2 else ""
    if summand and attributes.number("beta", 1.0) != 1.0:
        raise BackendError("Gemm with a beta that is not 1")
    m, k = reversed(left.shape) if transposed[0] else left.shape
    n = right.shape[0] if transposed[1] else right.shape[1]
    alpha = attributes.number("alpha", 1.0)
    return Product(
        left.dtype, m, n, k, left_transposed=transposed[0], right_transposed=transposed[1],
        alpha=alpha, summand=summand,
    )  # fmt: skip
