"""scripts is one package: modules are imported by their full names, and benchmarks do not lean on tests."""

import ast
from collections.abc import Iterator

import pytest

from tests.rules.source import ROOT, Module, read, scripts


def imported(module: Module) -> Iterator[str]:
    """Yields the full name of each module that a file imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def path_edits(module: Module) -> Iterator[int]:
    """Yields the lines at which a file changes `sys.path`: assignments to it or a part of it, and its methods."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            wanted = [each.value if isinstance(each, ast.Subscript) else each for each in targets]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            wanted = [node.func.value]
        else:
            continue
        if any(ast.unparse(each) == "sys.path" for each in wanted):
            yield node.lineno


def test_no_script_imports_tests() -> None:
    found = [f"{m.path} {name}" for m in scripts() for name in imported(m) if name.partition(".")[0] == "tests"]
    assert found == []


FOREIGN = {"tests/cuda/fuzz.py": "started by path, in the environment of the CUDA build"}
"""Files that a Python without this checkout on its path runs."""


def test_nothing_edits_the_import_path() -> None:
    tests = [read(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
    found = {str(m.path) for m in (*scripts(), *tests) for _ in path_edits(m)}
    assert found == set(FOREIGN)


@pytest.mark.parametrize(
    "line",
    ["sys.path[:0] = ['x']", "sys.path = []", "sys.path += ['x']", "sys.path.insert(0, 'x')", "sys.path.append('x')"],
)
def test_the_rule_sees_each_kind_of_edit(line: str) -> None:
    module = Module(ROOT, line, ast.parse(line))
    assert list(path_edits(module)) == [1]
