"""Element types of an executable's tensors."""

DTYPES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""Size of an element in bytes, by numpy's name."""
