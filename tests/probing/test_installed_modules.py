"""Modules of installed packages are told from the user's own."""

import sys
from types import ModuleType

import pytest

from autofit.probing.remote.worker import installed_modules


def test_libraries_are_listed_and_the_users_modules_are_not() -> None:
    found = installed_modules("train.py:make")
    assert {"torch", "torch.nn", "pytest", "json"} <= set(found)
    tops = {name.partition(".")[0] for name in found}
    assert tops.isdisjoint({"tests", "autofit", "__main__", "sys"})  # the last has no file


def test_the_targets_own_package_is_the_users_wherever_it_is() -> None:
    assert "torch.nn" not in installed_modules("torch.nn:Linear")
    assert "torch.nn" in installed_modules("torchvision.nn:Linear")


def test_modules_without_a_file_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ModuleType("odd")
    odd.__file__ = 3  # type: ignore[assignment]  # some packages put objects there
    monkeypatch.setitem(sys.modules, "odd", odd)
    monkeypatch.setitem(sys.modules, "none", None)  # Python's mark of a failed import
    assert {"odd", "none"}.isdisjoint(installed_modules("train.py:make"))
