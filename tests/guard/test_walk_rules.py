"""What the walk follows: whose code an object is, and the globals that a function uses."""

import collections
import math
import sys
import types
from collections.abc import Callable
from types import FunctionType

import numpy as np
import pytest
import torch

from autofit.core.plan import Plan
from autofit.guard.walk_rules import Origin, names_in, namespaces, origin_of


class Own:
    """A class of the user's."""


@pytest.mark.parametrize(
    ("kind", "origin"),
    [
        (Own, Origin.USER),
        (torch.nn.Linear, Origin.TORCH),
        (collections.Counter, Origin.STANDARD),
        (np.ndarray, Origin.LIBRARY),
        (Plan, Origin.AUTOFIT),
    ],
)
def test_a_class_belongs_to_whoever_defined_it(kind: type, origin: Origin) -> None:
    assert origin_of(kind) is origin


def test_a_script_is_the_users_though_python_has_a_module_of_its_name() -> None:
    assert origin_of("__main__") is Origin.USER


def test_what_is_not_known_is_the_users() -> None:
    assert origin_of(None) is Origin.USER
    assert origin_of("no_such_module_here") is Origin.USER


def test_a_module_is_a_librarys_where_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("installed_one", "/lib/site-packages/one.py"), ("own_one", "/home/me/site/one.py")):
        module = types.ModuleType(name)
        module.__file__ = place
        monkeypatch.setitem(sys.modules, name, module)
    assert origin_of("installed_one") is Origin.LIBRARY
    assert origin_of("own_one") is Origin.USER


COUNT = 3


def counting(value: float) -> float:
    def inner() -> float:
        return math.floor(value) + COUNT

    return inner() + torch.ones(1).item()


def function(written: Callable[..., object]) -> FunctionType:
    """Returns a function that was written with `def` as the type that it has."""
    assert isinstance(written, FunctionType)
    return written


def test_the_names_of_code_inside_count() -> None:
    names = names_in(counting.__code__)
    assert {"COUNT", "math", "floor", "torch", "ones", "item"} <= set(names)
    assert len(names) == len(set(names))
    assert "value" not in names


def test_namespaces_are_the_users_alone() -> None:
    assert origin_of(function(counting)) is Origin.USER
    found = {name: inside for name, _, inside in namespaces(function(counting))}
    assert list(found) == [__name__]
    assert "COUNT" in found[__name__]
    assert list(namespaces(function(torch.nn.Linear.forward))) == []


def test_a_module_imported_inside_a_function_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_settings")
    vars(module)["DEPTH"] = 12
    monkeypatch.setitem(sys.modules, "my_settings", module)

    def step() -> int:
        import my_settings  # type: ignore[import-not-found]  # noqa: PLC0415  # what the test is about

        return int(my_settings.DEPTH)

    found = {name: inside for name, _, inside in namespaces(function(step))}
    assert found["my_settings"] == ("DEPTH",)
