"""The shape of JSON documents and of their schemas: names of fields and kinds of values, nothing else."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

MAPS = frozenset({
    "baseline_reasons", "baselines", "environment", "errors", "excused", "files", "latency",
    "left_out", "libraries", "ratios", "refused", "rejected", "toolchains",
})  # fmt: skip
"""Fields whose keys are data: names of frameworks, files, outputs. A `latency` with `collage_s` is none."""

VERSIONS = frozenset({"schema_version"})
"""Fields whose values are part of a format."""

_DROPPED = ("title", "description")


def shape_of(value: object) -> Any:
    """Return a document's fields with the kinds of their values.

    A list has the shapes that its items have together. A number and null are one kind, since most
    measurements may be absent.

    >>> shape_of({"a": [1, None], "b": {"c": "text"}})
    {'a': ['number'], 'b': {'c': 'text'}}
    """
    if isinstance(value, dict):
        return {
            name: _field(name, one) for name, one in value.items()
        }  # in the document's own order
    if isinstance(value, list):
        found: list[Any] = []
        for shape in map(shape_of, value):
            if shape not in found:
                found.append(shape)
        return found
    return {bool: "flag", str: "text"}.get(type(value), "number")


def fits(found: Any, whole: Any) -> bool:
    """Tell whether a shape is `whole`, but for lists and maps that are shorter or empty, and absent objects.

    >>> fits({"a": []}, {"a": ["number"]}), fits({"b": []}, {"a": ["number"]})
    (True, False)
    """
    if isinstance(found, dict) and isinstance(whole, dict):
        if whole.keys() == {"*"}:
            return not found or fits(found.get("*"), whole["*"])
        return found.keys() == whole.keys() and all(fits(found[k], whole[k]) for k in whole)
    if isinstance(found, list) and isinstance(whole, list):
        return all(any(fits(one, other) for other in whole) for one in found)
    return found == whole or found == "number"


def schema_of(model: type[BaseModel]) -> Any:
    """Return the fields of a wire model with types, limits and defaults; `!` marks what must be given."""
    schema = model.model_json_schema(mode="validation")
    return _schema(schema, schema.get("$defs", {}))


def _field(name: str, value: object) -> Any:
    if name in VERSIONS:
        return value
    if name in MAPS and isinstance(value, dict) and "collage_s" not in value:
        shapes = [shape_of(one) for one in value.values()]
        return {"*": shapes[0]} if shapes else {}
    return shape_of(value)


def _schema(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _schema(known[schema["$ref"].rpartition("/")[2]], known)
    if "properties" in schema:
        required = schema.get("required", ())
        return {
            f"{name}!" if name in required else name: _schema(one, known)
            for name, one in schema["properties"].items()
        }
    if "anyOf" in schema:
        return {"any of": [_schema(one, known) for one in schema["anyOf"]], **_default(schema)}
    if "items" in schema:
        return {"list of": _schema(schema["items"], known), **_default(schema)}
    if "prefixItems" in schema:
        return {"tuple of": [_schema(one, known) for one in schema["prefixItems"]]}
    if isinstance(schema.get("additionalProperties"), dict):
        return {"map to": _schema(schema["additionalProperties"], known), **_default(schema)}
    facts = {name: one for name, one in schema.items() if name not in _DROPPED}
    return ", ".join(f"{name}={one!r}" for name, one in sorted(facts.items()))


def _default(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"default": schema["default"]} if "default" in schema else {}
