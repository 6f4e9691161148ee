"""Compiled modules: found as wrappers and in place, at any depth."""

import torch
from torch import nn

from autofit.strategies.compiled_modules import has_compiled_part, is_compiled


def test_wrapper_and_module_compiled_in_place_are_found() -> None:
    wrapped, in_place = torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2)
    in_place.compile(backend="eager")
    for compiled in (wrapped, in_place):
        assert isinstance(compiled, nn.Module)
        assert is_compiled(compiled)
        assert has_compiled_part(nn.Sequential(nn.Sequential(compiled)))


def test_parent_of_a_compiled_module_is_not_compiled_itself() -> None:
    inner = nn.Linear(2, 2)
    inner.compile(backend="eager")
    assert not is_compiled(nn.Sequential(inner))


def test_ordinary_model_has_no_compiled_part() -> None:
    assert not has_compiled_part(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))
