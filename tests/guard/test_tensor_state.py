"""Bytes, layout and sharing of unusual tensors come back."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from autofit.guard import Guard
from autofit.guard.object_state import fingerprint
from tests.digests import digest_in


def test_data_exchanged_for_a_clone_shares_memory_again() -> None:
    flat = torch.arange(6.0)
    model = nn.Module()
    model.left, model.right = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    model.register_buffer("whole", flat)
    with Guard(model) as guard:
        model.right.data = model.right.data.clone()
        assert guard.differences() == ["model.right"]
    model.get_buffer("whole").fill_(9.0)
    assert model.right.tolist() == [9.0] * 3
    assert model.left.tolist() == [9.0] * 3


def test_a_lazy_module_is_lazy_again() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with Guard(model) as guard:
        model(torch.ones(2, 4))
        assert "model.0.__class__" in guard.differences()
    assert isinstance(model[0], nn.LazyLinear)
    assert isinstance(model[0].weight, nn.UninitializedParameter)
    assert model(torch.ones(2, 5)).shape == (2, 3)


def test_sparse_gradients_come_back() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 2])).sum().backward()
    before = fingerprint(model.weight.grad)
    with Guard(model) as guard:
        model(torch.tensor([3])).sum().backward()
        assert guard.differences() == ["model.weight.grad"]
    assert fingerprint(model.weight.grad) == before


def test_nan_is_not_a_difference() -> None:
    model: Any = nn.Linear(2, 2)
    model.weight.data[0, 0] = math.nan
    model.threshold = math.nan
    with Guard(model) as guard:
        model.threshold = float("nan")
        assert guard.differences() == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_every_type_of_tensor_is_compared_by_its_bytes() -> None:
    model: Any = nn.Module()
    model.complex = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    model.scalar = nn.Parameter(torch.tensor(1.5))
    model.half = torch.zeros(5, dtype=torch.bfloat16)
    model.flags = torch.ones(3, dtype=torch.bool)
    model.nested = [{"x": torch.ones(2)}]
    model.rows = torch.eye(3).to_sparse_csr()
    model.empty, model.meta = torch.empty(0, 4), torch.empty(3, device="meta")
    with Guard(model) as guard:
        digest = digest_in(guard)
        model.complex.data.mul_(2)
        model.scalar.data = torch.tensor(2.0)
        model.half[4] = -0.0
        model.flags.logical_not_()
        model.nested[0]["x"].add_(1)
        model.rows.values().mul_(3)
        names = ["complex", "scalar", "half", "flags", "nested[0].x", "rows"]
        assert sorted(guard.differences()) == sorted(f"model.{name}" for name in names)
    assert digest_in(guard) == digest


def test_a_tensor_moved_to_other_memory_gets_its_strides_back() -> None:
    model = nn.ParameterList([nn.Parameter(torch.arange(6.0).reshape(2, 3).t())])
    with Guard(model) as guard:
        model[0].data = model[0].data.contiguous()
        assert guard.differences() == ["model.0"]
    assert model[0].stride() == (1, 3)
    assert model[0].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
