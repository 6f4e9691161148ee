"""The vocabulary of DESIGN.md 2: one word per idea, and one idea per word."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.rules.source import Module, modules, scripts

RETIRED = re.compile(r"predict|fores(?:ee|aw|ight)|foret(?:ell|old)|forecast", re.IGNORECASE)
"""Words that are not written any more. What estimates is an `Estimator`, and what it says an `Estimate`."""
ALLOWED = re.compile(r"memory_prediction\.md|test_prediction\.py|[\"`]predicted[\"`]|^predicted$")
"""Names of files, and of what files of earlier versions hold, which are still read."""
PREDICTING = "autofit/exporters/python/"
"""Writes the function `predict` of a model that was tuned for inference: there it is the field's own term."""
UNITS = ("_s", "_bytes", "_per_s", "_ratio")
WITHOUT_UNITS = re.compile(
    r"(?:^|_)(?:seconds|secs?|millis(?:econds)?|ms|minutes?|mib|gib|mb|gb|kb|megabytes|gigabytes|percent|pct|hz)$"
)
"""Endings that name a unit other than those of the package."""
UNIT_EXCEPTIONS = {
    "seconds": "a method or local whose value is in seconds, named for what it is",
    "minutes": "a part of a duration that is written out",
    "mib": "bytes in a MiB, and sizes as an allocator setting lists them",
}


def names(module: Module) -> Iterator[tuple[str, int]]:
    """Yields what a module names itself: functions, classes, arguments, variables and attributes, with the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def texts(module: Module) -> Iterator[tuple[str, int]]:
    """Yields every text in a module, docstrings included, with the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def test_no_class_name_has_two_meanings() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.classes():
            found[node.name.lstrip("_")].append(str(module.path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def retired(text: str) -> bool:
    """Says whether a text has a retired word."""
    return RETIRED.search(ALLOWED.sub("", text)) is not None


def vocabulary() -> Iterator[Module]:
    """Yields the modules whose words are those of DESIGN.md 2."""
    return (module for module in (*modules(), *scripts()) if not str(module.path).startswith(PREDICTING))


def test_no_name_is_a_retired_word() -> None:
    found = [
        f"{m.path}:{line} {name}" for m in vocabulary() for name, line in [*names(m), (m.path.stem, 1)] if retired(name)
    ]
    assert found == []


def test_no_text_has_a_retired_word() -> None:
    found = [f"{m.path}:{line} {text.strip()[:80]!r}" for m in vocabulary() for text, line in texts(m) if retired(text)]
    assert found == []


def test_units_are_those_of_the_design() -> None:
    found = sorted(
        f"{m.path}:{line} {name}"
        for m in modules()
        for name, line in names(m)
        if WITHOUT_UNITS.search(name.lower()) and name.lower().lstrip("_") not in UNIT_EXCEPTIONS
    )
    assert found == []


@pytest.mark.parametrize("name", ["predicted_bytes", "Foresight", "foretold", "FORECAST"])
def test_the_rule_sees_retired_words(name: str) -> None:
    assert retired(name)


@pytest.mark.parametrize("name", ["time_ms", "size_mb", "share_percent", "timeout_seconds"])
def test_the_rule_sees_other_units(name: str) -> None:
    assert WITHOUT_UNITS.search(name)
