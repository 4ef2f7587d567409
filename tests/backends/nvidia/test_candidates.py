"""Golden tables: candidates of each NVIDIA toolchain for four models, on any machine."""

import json
import sys

import pytest

from collage.backends.registry import known_backends
from collage.cli import main
from collage.frontend import import_model
from collage.pipeline.candidate_list import listed
from tests.backends.regions import convolutions

pytestmark = pytest.mark.full

MODELS = ("bert_base_2l", "gpt2_2l", "resnet18", "convnext_tiny")
COUNTS = {
    ("bert_base_2l", "tvm-cuda"): (135, 270, 72, 0),
    ("bert_base_2l", "cublas"): (36, 144, 36, 36),
    ("bert_base_2l", "cudnn"): (7, 21, 7, 65),
    ("bert_base_2l", "cutlass"): (34, 170, 42, 30),
    ("bert_base_2l", "tensorrt"): (573, 573, 72, 0),
    ("bert_base_2l", "onnxruntime-cuda"): (569, 569, 72, 0),
    ("bert_base_2l", "onnxruntime-host"): (112, 112, 56, 16),
    ("gpt2_2l", "tvm-cuda"): (147, 294, 79, 0),
    ("gpt2_2l", "cublas"): (22, 88, 42, 37),
    ("gpt2_2l", "cudnn"): (7, 21, 7, 72),
    ("gpt2_2l", "cutlass"): (20, 100, 24, 55),
    ("gpt2_2l", "tensorrt"): (565, 565, 79, 0),
    ("gpt2_2l", "onnxruntime-cuda"): (565, 565, 79, 0),
    ("gpt2_2l", "onnxruntime-host"): (131, 131, 67, 12),
    ("resnet18", "tvm-cuda"): (86, 172, 47, 0),
    ("resnet18", "cublas"): (0, 0, 0, 47),
    ("resnet18", "cudnn"): (52, 156, 46, 1),
    ("resnet18", "cutlass"): (51, 255, 45, 2),
    ("resnet18", "tensorrt"): (439, 439, 47, 0),
    ("resnet18", "onnxruntime-cuda"): (433, 1223, 47, 0),
    ("resnet18", "onnxruntime-host"): (38, 38, 27, 20),
    ("convnext_tiny", "tvm-cuda"): (666, 1332, 286, 0),
    ("convnext_tiny", "cublas"): (72, 288, 72, 214),
    ("convnext_tiny", "cudnn"): (45, 135, 45, 241),
    ("convnext_tiny", "cutlass"): (94, 470, 166, 120),
    ("convnext_tiny", "tensorrt"): (2834, 2834, 286, 0),
    ("convnext_tiny", "onnxruntime-cuda"): (2834, 4956, 286, 0),
    ("convnext_tiny", "onnxruntime-host"): (570, 570, 231, 55),
}
"""Regions, regions times variants, nodes taken alone, nodes refused."""

BERT = {"matmul": 16, "matmul+bias": 12, "matmul+scale": 2, "matmul+scale+residual": 2}
GPT2 = {"gemm": 8, "gemm+residual": 4, "matmul": 4, "matmul+scale": 2, "matmul+scale+residual": 2}
RESNET = {"conv": 20, "conv+residual": 11, "conv+residual+relu": 11, "conv+relu": 9}
LABELS = {
    ("bert_base_2l", "cublas"): {**BERT, "matmul+bias+residual": 4},
    ("bert_base_2l", "cutlass"): {**BERT, "matmul+bias+gelu_erf": 2},
    ("bert_base_2l", "cudnn"): {"LayerNormalization": 5, "Softmax": 2},
    ("gpt2_2l", "cublas"): {**GPT2, "gemm+gelu_tanh": 2},
    ("gpt2_2l", "cutlass"): GPT2,
    ("resnet18", "cudnn"): {**RESNET, "MaxPool": 1},
    ("resnet18", "cutlass"): RESNET,
    ("convnext_tiny", "cutlass"): {
        "matmul": 36, "matmul+bias": 36, "matmul+bias+gelu_erf": 18, "conv": 4,
    },
}  # fmt: skip
LEFT_OUT = {
    ("bert_base_2l", "cublas", "tanh approximation"): 2,
    ("bert_base_2l", "cutlass", "one summand"): 4,
    ("bert_base_2l", "cudnn", "attention in float32"): 2,
    ("gpt2_2l", "cutlass", "11 bits"): 2,
    ("convnext_tiny", "cublas", "channel factor"): 21,
}


@pytest.fixture(scope="module")
def table(real_model):
    entries = {}
    for model in MODELS:
        function = real_model(model).functions[0]
        for backend in known_backends(None, "cuda"):
            entries[model, backend.name] = listed(function, backend)
    return entries


@pytest.mark.parametrize(("model", "backend"), COUNTS)
def test_the_counts_are_those_of_the_golden_table(table, model, backend):
    entry = table[model, backend]
    variants = sum(len(candidate.variants) for candidate in entry.candidates)
    refused = sum(len(names) for names in entry.refused.values())
    assert (len(entry.candidates), variants, entry.alone, refused) == COUNTS[model, backend]


@pytest.mark.parametrize(("model", "backend"), LABELS)
def test_library_patterns_are_found(table, model, backend):
    assert table[model, backend].labels == LABELS[model, backend]


@pytest.mark.parametrize(("model", "backend", "words"), LEFT_OUT)
def test_patterns_that_are_left_out_have_a_reason(table, model, backend, words):
    counts = [count for text, count in table[model, backend].left_out.items() if words in text]
    assert sum(counts) == LEFT_OUT[model, backend, words]


def test_every_node_that_a_backend_does_not_take_has_a_reason(table):
    for entry in table.values():
        covered = {name for candidate in entry.candidates for name in candidate.nodes}
        refused = {name for names in entry.refused.values() for name in names}
        assert all(entry.refused)
        assert not covered & refused
        assert len(covered | refused) <= entry.nodes


def test_the_command_needs_no_device(tmp_path, capsys):
    convolutions(tmp_path)
    assert main(["candidates", str(tmp_path / "model.onnx"), "--device", "cuda", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    cudnn = next(backend for backend in facts["backends"] if backend["name"] == "cudnn")
    assert "conv+residual" in {candidate["label"] for candidate in cudnn["candidates"]}
    assert cudnn["candidates"][0]["variants"] == ["", "heuristic-2", "heuristic-3"]
    assert cudnn["candidates"][0]["implementations"] == ["convolution"]
    arguments = ["candidates", str(tmp_path / "model.onnx"), "--device", "cuda"]
    assert main([*arguments, "--backends", "cudnn"]) == 0
    assert "cudnn (library), function main" in capsys.readouterr().out
    chosen = ["--backends", "cudnn", "--precision", "auto", "--json"]
    assert main([*arguments, *chosen]) == 0
    (reduced,) = json.loads(capsys.readouterr().out)["backends"]
    assert {*known_backends(("cudnn",), "cuda")[0].reduced} <= {
        *reduced["candidates"][0]["variants"]
    }


def test_a_backend_of_another_device_is_an_error(tmp_path, capsys):
    convolutions(tmp_path)
    assert main(["candidates", str(tmp_path / "model.onnx"), "--backends", "cublas"]) == 2
    assert "cublas runs on cuda, not on cpu: add --device cuda" in capsys.readouterr().err


def test_listing_candidates_imports_no_vendor_package(tmp_path):
    import_model(convolutions(tmp_path).simplified, work_dir=tmp_path / "again")
    assert not {"tensorrt", "cutlass", "cudnn"} & set(sys.modules)
