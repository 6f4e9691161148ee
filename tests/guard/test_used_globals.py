"""What a function names: globals of its own module, and of the user's modules that it names or imports."""

import math
import sys
import types
from collections.abc import Callable
from types import FunctionType

import pytest
import torch

from autofit.guard.code_origin import Origin
from autofit.guard.used_globals import code_origin, names_in, namespaces

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
    assert code_origin(function(counting)) is Origin.USER
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
