"""Imports of the project's modules, read from their source: at the top, and inside functions."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModuleImports:
    """What a module imports: at its top, and inside functions with the lines. Types alone do not count."""

    top: frozenset[str]
    inside: tuple[tuple[str, int], ...]


def project_modules(root: Path, folders: tuple[str, ...]) -> dict[str, str]:
    """Return the source of each module by its dotted name."""
    sources = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            sources[".".join(parts).removesuffix(".__init__")] = file.read_text()
    return sources


def imports_of(sources: Mapping[str, str]) -> dict[str, ModuleImports]:
    """Return the imports of each module."""
    return {name: _imports(ast.parse(source), sources) for name, source in sources.items()}


def loaded_packages(modules: Mapping[str, ModuleImports], name: str) -> frozenset[str]:
    """Return the third-party packages that are loaded when a module is imported."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        parts = pending.pop().split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            if module not in seen:
                seen.add(module)
                pending += modules[module].top if module in modules else ()
    own = {module.split(".")[0] for module in modules}
    return frozenset({module.split(".")[0] for module in seen} - own - sys.stdlib_module_names)


def _imports(tree: ast.AST, sources: Mapping[str, str]) -> ModuleImports:
    top, inside = set(), []
    for node, in_function in _statements(tree, in_function=False):
        for target in _targets(node, sources):
            if in_function:
                inside.append((target, node.lineno))
            else:
                top.add(target)
    return ModuleImports(frozenset(top), tuple(inside))


def _statements(
    tree: ast.AST, *, in_function: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, in_function
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _statements(node, in_function=in_function or function)


def _targets(node: ast.Import | ast.ImportFrom, sources: Mapping[str, str]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    names = {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if name in sources else str(node.module) for name in names}
