"""A ratchet: the package's lines, files and uses of other libraries' private names may only fall.

`ratchet.yaml` has the numbers. A commit that raises one says why there; a commit that lowers one by more than `SLACK`
writes the new number.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from tests.rules.source import Module, modules

FILE = Path(__file__).with_name("ratchet.yaml")
SLACK = {"lines": 250, "files": 5, "private_names": 3, "private_operators": 3}
"""How far a number may lie below its limit before the limit has to follow."""


DOCUMENTED = {"_current_frames", "_exit", "_getframe", "_replace"}
"""Names with an underscore that Python documents: of `os`, `sys` and named tuples."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def own_names() -> set[str]:
    """Returns the private names that the package itself defines."""
    found: set[str] = set()
    for module in modules():
        for node in ast.walk(module.tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    found.add(name)
    return {name for name in found if is_private(name)}


OPERATORS = {name for name in dir(torch.ops.aten) if is_private(name)} | {
    schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas() if "::_" in schema.name
}
"""torch's operators with an underscore. A table of operators names them where its rules are."""


def private_uses(module: Module, own: set[str]) -> Iterator[str]:
    """Yields the private names of other libraries that a module uses, each time."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield name
            case ast.ImportFrom(module=str(source), names=names, level=0) if not source.startswith("autofit"):
                parts = source.split(".")
                yield from (part for part in parts if is_private(part))
                yield from (alias.name for alias in names if is_private(alias.name))
            case ast.Import(names=names):
                yield from (part for alias in names for part in alias.name.split(".") if is_private(part))


def measured() -> dict[str, int]:
    own = own_names()
    return {
        "lines": sum(module.lines for module in modules()),
        "files": len(list(modules())),
        "private_names": sum(len([n for n in private_uses(m, own) if n not in OPERATORS]) for m in modules()),
        "private_operators": sum(len([n for n in private_uses(m, own) if n in OPERATORS]) for m in modules()),
    }


@pytest.mark.parametrize("what", SLACK)
def test_it_only_falls(what: str) -> None:
    limit, found = yaml.safe_load(FILE.read_text(encoding="utf-8"))["limits"][what], measured()[what]
    assert found <= limit, f"{found} {what}: make them fewer, or raise the limit in {FILE.name} and say why there"
    assert found >= limit - SLACK[what], f"{found} {what}: lower the limit in {FILE.name}"


def test_a_use_is_counted_and_an_own_name_is_not() -> None:
    text = "import torch._dynamo\nfrom torch import _guards\ntorch._C.x\nself._own\nvars._own\na.__dict__\n"
    module = Module(Path("a.py"), text, ast.parse(text))
    assert sorted(private_uses(module, {"_own"})) == ["_C", "_dynamo", "_guards"]
