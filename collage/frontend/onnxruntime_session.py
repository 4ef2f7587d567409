"""ONNX Runtime sessions of the importer, and the reading of their errors."""

import re
from pathlib import Path

import onnxruntime

_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "length_error")
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
_LOCATION = re.compile(r"/\S+\.(cc|h|cpp|hpp):\d+ [^()]*\(")
"""Source location in a message of ONNX Runtime: file, line, and signature up to its arguments."""


def session(model: Path | bytes, level: str = "ORT_DISABLE_ALL") -> onnxruntime.InferenceSession:
    """Open a quiet single-threaded CPU session."""
    options = session_options(level)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def session_options(level: str) -> onnxruntime.SessionOptions:
    """Return options of a quiet single-threaded session."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether ONNX Runtime ran out of memory; it has no exception class for that."""
    return any(words in str(error) for words in _NO_MEMORY)


def first_line(error: Exception) -> str:
    """Return the message of an error without its stack of causes."""
    return str(error).strip().split("\n", 1)[0]


def refusal_reason(error: Exception) -> str:
    """Return ONNX Runtime's reason against a model, without error codes, file names and source locations.

    >>> refusal_reason(Exception("[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/s/m.cc:2 "
    ...                       "void ort::Model::f(int, g<a()>) Unsupported model IR version: 14"))
    'Unsupported model IR version: 14'
    """
    text = _PREFIX.sub("", first_line(error))
    if not (location := _LOCATION.match(text)):
        return text
    depth, start = 1, location.end()
    while depth and start < len(text):
        depth += {"(": 1, ")": -1}.get(text[start], 0)
        start += 1
    return text[start:].removeprefix(" const").strip() or text
