"""What is looked for on accelerators alone, here with tensors on the host and the account of a caching allocator."""

import pytest
import torch
from torch import nn

from autofit.core.account import Account
from autofit.core.work import Work
from autofit.doctor.findings.accelerators import EXPANDABLE, Fp32Products, Fragmentation
from autofit.doctor.observation import Observation
from tests.doctor.cases import MIB, Case, held_outputs, observed

CACHING = Account(allocator="caching")


def growing() -> Case:
    """Steps whose tensors become larger, so that no earlier segment fits them."""
    model, sizes = nn.Linear(8, 8), iter(range(1, 100))

    def step() -> None:
        rows = next(sizes) * 3 * MIB // 32
        model(torch.randn(rows, 8)).mean().backward()
        model.zero_grad()

    return Case(model, step)


def test_segments_that_larger_tensors_cannot_use_are_found() -> None:
    (found,) = Fragmentation().find(observed(growing(), CACHING))
    assert EXPANDABLE in found.remedy
    assert found.size is not None
    assert found.size.peak_bytes is not None
    assert found.size.peak_bytes > 8 * MIB


def test_growing_segments_have_no_finding() -> None:
    account = CACHING.model_copy(update={"settings": EXPANDABLE})
    assert list(Fragmentation().find(observed(growing(), account))) == []


def test_products_in_float32_are_counted() -> None:
    (found,) = Fp32Products().find(with_work({"fp32": 300, "bf16": 100}))
    assert found.what.startswith("75% of the arithmetic")


@pytest.mark.parametrize("flops", [{"bf16": 100}, {"fp32": 100, "bf16": 300}, {"tf32": 100}, {}])
def test_few_products_in_float32_are_left_alone(flops: dict[str, int]) -> None:
    assert list(Fp32Products().find(with_work(flops))) == []


def with_work(flops: dict[str, int]) -> Observation:
    """Returns an observation whose steps have this work: that of a host is not counted."""
    seen = observed(held_outputs(True), CACHING)
    seen.watch.work[:] = [Work(flops=flops)] * len(seen.watch.work)
    return seen


@pytest.fixture(scope="module")
def on_host() -> Observation:
    return observed(held_outputs(True))


@pytest.mark.parametrize("kind", [Fragmentation, Fp32Products])
def test_a_host_is_not_checked(on_host: Observation, kind: type[Fragmentation] | type[Fp32Products]) -> None:
    assert kind().unchecked(on_host)
