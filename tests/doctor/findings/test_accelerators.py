"""What is looked for on accelerators alone, here with tensors on the host and the account of a caching allocator."""

from dataclasses import replace
from time import sleep

import pytest
import torch
from torch import nn

from autofit.core.account import Account
from autofit.core.work import Work
from autofit.devices.cpu import Cpu
from autofit.doctor.findings.accelerators import (
    EXPANDABLE,
    Fp32Products,
    Fragmentation,
    LaunchBound,
    RepeatedCasts,
)
from autofit.doctor.findings.base import Detector
from autofit.doctor.findings.plans import Workspaces
from autofit.doctor.observation import Observation
from autofit.doctor.seen import Cast
from autofit.doctor.sites import NOWHERE
from autofit.doctor.what_if import HostPace, WhatIf
from autofit.memory.peak import memory_use
from autofit.memory.trace import Kind
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


def test_segments_left_by_steps_before_the_watch_are_no_finding() -> None:
    seen = observed(growing(), CACHING)
    least = memory_use(seen.whole, CACHING.model_copy(update={"settings": EXPANDABLE})).reserved_bytes
    assert least is not None
    seen.peaks = least, least
    assert list(Fragmentation().find(seen)) == []


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


@pytest.mark.parametrize("kind", [Fragmentation, Fp32Products, LaunchBound, RepeatedCasts, Workspaces])
def test_a_host_is_not_checked(on_host: Observation, kind: type[Detector]) -> None:
    assert kind().skipped(replace(on_host, what_if=issuing(0.0, 0.0)))


class Late(Cpu):
    """A device that does its work after it was issued, as an accelerator does."""

    left_s = 0.0

    def synchronize(self) -> None:
        sleep(self.left_s)
        self.left_s = 0.0


def issuing(issue_s: float, device_s: float) -> WhatIf:
    """Returns steps that take the host and the device so long."""
    device = Late()

    def step() -> None:
        sleep(issue_s)
        device.left_s = device_s

    return WhatIf(step, device, list)


def with_what_if(what_if: WhatIf) -> Observation:
    return replace(with_work({}), what_if=what_if)


def test_a_device_that_waits_for_the_host_is_found() -> None:
    seen = with_what_if(issuing(0.02, 0.0001))
    seen.watch.work[:] = [Work(operators=1234)] * len(seen.watch.work)
    assert LaunchBound().unchecked(seen) == ""
    (found,) = LaunchBound().find(seen)
    assert "1,234 operators" in found.what


def test_a_device_that_works_on_when_all_is_issued_has_enough_to_do() -> None:
    assert list(LaunchBound().find(with_what_if(issuing(0.005, 0.02)))) == []


def test_a_host_that_waits_within_the_step_says_nothing_about_its_speed() -> None:
    pace = HostPace(issue_s=1.0, step_s=1.0, waits_s={("a value is read", NOWHERE): 0.4})
    what_if = WhatIf(lambda: None, Late(), list)
    what_if.pace = pace
    seen = with_what_if(what_if)
    assert "waits for the device" in LaunchBound().unchecked(seen)


@pytest.mark.parametrize(("measured_mib", "found_mib"), [(164, 100), (66, 0)])
def test_memory_beyond_the_tensors_of_a_step_is_that_of_workspaces(
    measured_mib: int, found_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = with_work({})
    tensors = seen.peak_bytes - seen.watch.levels[seen.step - 1]
    beyond = max(measured_mib - 64, 0) * MIB
    monkeypatch.setattr(WhatIf, "transient_bytes", tensors + beyond)
    found = list(Workspaces().find(replace(seen, what_if=WhatIf(lambda: None, Cpu(), list))))
    assert [each.size.peak_bytes for each in found if each.size] == ([found_mib * MIB] if found_mib else [])


@pytest.mark.parametrize(("trained", "count", "found"), [(True, 2, 0), (True, 6, 1), (False, 1, 1)])
def test_casts_that_autocast_does_not_remember_are_counted(trained: bool, count: int, found: int) -> None:
    seen = observed(held_outputs(True), CACHING)
    seen.watch.casts[Cast(seen.step, seen.watch.kinds.index(Kind.PARAMETER), torch.bfloat16, trained)] = count
    seen.watch.work[:] = [Work(traffic_bytes=MIB)] * len(seen.watch.work)
    texts = [each.what for each in RepeatedCasts().find(seen)]
    assert len(texts) == found
    assert all(("frozen" in text) is not trained for text in texts)
    seen.watch.work[:] = [Work(traffic_bytes=2**50)] * len(seen.watch.work)
    assert list(RepeatedCasts().find(seen)) == []
