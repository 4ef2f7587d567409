"""The epilogue of GEMM libraries: activation(alpha * A B + bias + residual).

Additions commute: a bias may come before or after a residual. A scale comes first, an activation last. Gemm's
own summand is a bias if it is a vector, else a residual.
"""

from dataclasses import dataclass
from math import prod

from collage.backends.nvidia.chain import Chain, StepKind
from collage.backends.nvidia.product import Product
from collage.errors import BackendError
from collage.frontend.model import Function


@dataclass(frozen=True)
class Epilogue:
    """An epilogue.

    Attributes:
        alpha: factor of the product.
        bias: name of the bias, "" for none.
        residual: name of the residual, "" for none.
        residual_stride: elements between the residual's matrices; 0 for one matrix for the whole batch.
        activation: name of the activation as in a chain, "" for none.
    """

    alpha: float = 1.0
    bias: str = ""
    residual: str = ""
    residual_stride: int = 0
    activation: str = ""


def read_epilogue(function: Function, product: Product, chain: Chain) -> Epilogue:
    """Return the epilogue of a chain.

    Raises:
        BackendError: the chain does not fit one epilogue, with the reason.
    """
    alpha, activation = product.alpha, ""
    biases, residuals = _summands(function, product)
    for step in chain.work:
        if activation:
            raise BackendError(f"{step.kind.value} after the activation")
        match step.kind:
            case StepKind.SCALE if biases or residuals:
                raise BackendError("scale after a summand")
            case StepKind.SCALE:
                alpha *= step.number
            case StepKind.BIAS:
                biases.append(step.operand)
            case StepKind.RESIDUAL:
                residuals.append(step.operand)
            case StepKind.ACTIVATION:
                activation = step.name
            case _:
                raise BackendError(f"{step.kind.value} in the epilogue")
    if len(biases) > 1 or len(residuals) > 1:
        raise BackendError("two summands of one kind")
    residual = residuals[0] if residuals else ""
    stride = _residual_stride(function, product, residual) if residual else 0
    return Epilogue(alpha, biases[0] if biases else "", residual, stride, activation=activation)


def _residual_stride(function: Function, product: Product, residual: str) -> int:
    size, matrix = prod(function.graph.types[residual].shape), product.m * product.n
    if size == matrix * product.batch:
        return matrix if product.batch > 1 else 0
    if size == matrix:
        return 0
    raise BackendError("residual that is repeated over the rows of one product")


def _summands(function: Function, product: Product) -> tuple[list[str], list[str]]:
    """Return Gemm's own summand as a bias or a residual."""
    if not product.summand:
        return [], []
    shape = function.graph.types[product.summand].shape
    if prod(shape) == product.n and shape[-1] == product.n:
        return [product.summand], []
    if shape == (product.m, product.n):
        return [], [product.summand]
    raise BackendError(f"Gemm with a summand of shape {list(shape)}")
