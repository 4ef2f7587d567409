"""Imports stand at the top of a module. Inside a function they save the load of a package, or start-up time.

An import inside a function is allowed where it loads a third-party package that importing the module does
not load: one that may not be installed (boto3, mlflow, cryptography), or that takes long to load (TVM, ONNX).
The modules of START_UP may import anything inside functions.
"""

from pathlib import Path

import pytest

from tests.support.imports import imports_of, loaded_packages, project_modules

ROOT = Path(__file__).parents[2]
FOLDERS = ("collage", "containers", "flows")
START_UP = ("collage", "collage.cli")
"""The public face, and the packages of the command line: a command loads only the stages that it runs."""


def needless(sources: dict[str, str]) -> list[str]:
    """Return the imports inside functions that could stand at the top, as module:line target."""
    modules = imports_of(sources)
    found = []
    for name, module in modules.items():
        present = loaded_packages(modules, name)
        for line in sorted({line for _, line in module.inside}):
            targets = [target for target, at in module.inside if at == line]
            packages = frozenset().union(*(loaded_packages(modules, target) for target in targets))
            if packages <= present:
                found.append(f"{name}:{line} {targets[0]}")
    return found


def lazy(name: str) -> bool:
    """Tell whether START_UP allows a module every import inside functions."""
    return name in START_UP or name.startswith("collage.cli.")


LAZY = "def f():\n    import {}\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import tvm\n", []),
        (LAZY.format("tvm"), []),
        (LAZY.format("json"), ["p.a:2 json"]),
        (LAZY.format("p.heavy"), []),
        (LAZY.format("p.light"), ["p.a:2 p.light"]),
        ("def f():\n    from p import light\n", ["p.a:2 p.light"]),
        ("import tvm\n" + LAZY.format("p.heavy"), ["p.a:3 p.heavy"]),
        ("from p import heavy\n" + LAZY.format("tvm"), ["p.a:3 tvm"]),
        ("if TYPE_CHECKING:\n    import tvm\n" + LAZY.format("tvm"), []),
    ],
)
def test_a_needless_import_in_a_function_is_noticed(source, found):
    light, heavy = "import json\n", "import tvm.relax\n"
    assert needless({"p": "", "p.a": source, "p.light": light, "p.heavy": heavy}) == found


def test_functions_import_only_what_saves_a_load():
    found = needless(project_modules(ROOT, FOLDERS))
    assert not [place for place in found if not lazy(place.partition(":")[0])]
    assert [place for place in found if lazy(place.partition(":")[0])], "START_UP has a use"
