"""Whose code a class or function is decides how far the walk goes."""

import collections
import sys
import types

import numpy as np
import pytest
import torch

from autofit.core.plan import Plan
from autofit.guard.code_origin import Origin, class_origin, origin_of


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
    assert class_origin(kind) is origin


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
