"""The networks of the GPU benchmark in PyTorch, as an independent comparison where it is installed.

The architectures are those of the ONNX models, with random weights of their own: latencies can be compared,
outputs cannot. Inputs start and outputs end on the host, as an executable's do. The dtype `tf32` is float32
with TF32 allowed. Run as a program of its own, it prints one line of JSON: {"eager": seconds or null,
"compile": ..., "reason": text}.

    python -m benchmarks.gpu_torch bert_base_2l float16 '{"input_ids": [[1, 128], "int64"]}'
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

CALLS, WARM_UP = 100, 20


def network(name: str) -> Any:
    """Build the network. Raises ImportError without its package."""
    if name in ("resnet18", "convnext_tiny"):
        import torchvision

        return getattr(torchvision.models, name)(weights=None)
    import transformers

    if name == "bert_base_2l":
        return transformers.BertModel(transformers.BertConfig(num_hidden_layers=2))
    return transformers.GPT2Model(transformers.GPT2Config(n_layer=2))


def inputs_of(signature: dict[str, tuple[list[int], str]], dtype: str) -> list[Any]:
    """Make host tensors: token ids, ones for masks, normal floats in the network's own dtype."""
    import torch

    tensors = []
    for name, (shape, kind) in signature.items():
        if kind.startswith("int"):
            high = 2 if "mask" in name or "type" in name else 1000
            low = 1 if "mask" in name else 0
            tensors.append(torch.randint(low, max(high, low + 1), shape, dtype=torch.int64))
        else:
            tensors.append(torch.randn(shape, dtype=getattr(torch, dtype)))
    return [tensor.pin_memory() for tensor in tensors]


def measure(run: Callable[[], object]) -> float:
    """Return the median seconds of a call, up to its result on the host."""
    for _ in range(WARM_UP):
        run()
    samples = []
    for _ in range(CALLS):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def first_tensor(output: Any) -> Any:
    """Return the first tensor of a network's result of any structure."""
    if hasattr(output, "shape"):
        return output
    values = output.values() if hasattr(output, "values") else output
    return next(iter(values))


def compare(
    name: str, dtype: str, signature: dict[str, tuple[list[int], str]]
) -> dict[str, object]:
    """Measure the network eagerly and compiled; a failure is None, with the reason."""
    import torch

    rounds = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounds
    dtype = "float32" if rounds else dtype
    result: dict[str, object] = {"eager": None, "compile": None, "reason": ""}
    with torch.inference_mode():
        model = network(name).eval().to("cuda", getattr(torch, dtype))
        feed = inputs_of(signature, dtype)
        if name.startswith(("bert", "gpt2")):
            feed = feed[:1]  # masks and positions of full sequences are the defaults

        def call(module: Any) -> Callable[[], object]:
            return lambda: first_tensor(module(*(tensor.to("cuda") for tensor in feed))).cpu()

        for way in ("eager", "compile"):
            try:
                module = model if way == "eager" else torch.compile(model, mode="max-autotune")
                result[way] = measure(call(module))
            except Exception as error:  # noqa: BLE001 - any exception of the comparison is its reason
                result["reason"] = f"{way}: {type(error).__name__}: {str(error)[:200]}"
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    name, dtype, signature = arguments or sys.argv[1:]
    try:
        result = compare(name, dtype, json.loads(signature))
    except (ImportError, RuntimeError) as error:
        result = {
            "eager": None,
            "compile": None,
            "reason": f"{type(error).__name__}: {error}"[:300],
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
