"""A model that is nearly all weights: products with square matrices, for any number of rows.

In memory its weights outweigh everything else, so a second copy of them shows.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import collage

PRODUCTS, WIDTH = 3, 2048
"""Number of products, and rows and columns of each weight: 48 MiB in float32."""
ROWS = (8, 16)
"""Rows of the two shape sets."""


def product_model(file: Path, width: int = WIDTH) -> Path:
    """Write `PRODUCTS` products with weights of `width` x `width`, each followed by Relu."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"h{place}" for place in range(1, PRODUCTS)), "y"]
    nodes, initializers = [], []
    for place in range(PRODUCTS):
        weight = rng.standard_normal((width, width)).astype(np.float32) / np.float32(width) ** 0.5
        initializers.append(numpy_helper.from_array(weight, f"w{place}"))
        nodes += [
            helper.make_node("MatMul", [names[place], f"w{place}"], [f"p{place}"]),
            helper.make_node("Relu", [f"p{place}"], [names[place + 1]]),
        ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "products", [x], [y], initializers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), file)
    return file


def compile_products(model: Path, bundle: Path, backends: tuple[str, ...]) -> None:
    """Compile the model for two shape sets with a fallback; the plan need not be faster."""
    options = collage.Options(
        backends=backends,
        shapes=tuple({"x": (rows, WIDTH)} for rows in ROWS),
        threads=1,
        measure_budget_s=10.0,
        refine_s=0.0,
        tune_s=0.0,
        verify_s=0.5,
        allow_slower=True,
    )
    collage.compile(model, options, output=bundle)
