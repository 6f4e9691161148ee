"""A session: when it begins and ends, what it finds out by itself, and what it leaves behind."""

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autofit.devices.cpu import Cpu, HostMeter
from autofit.doctor.diagnosis import Finding, Size
from autofit.doctor.findings import members
from autofit.doctor.findings.base import OVER, Detector
from autofit.doctor.observation import STEPS, Observation
from autofit.doctor.session import COMPILED, Session, _rank, collection_off, uncompiled
from autofit.doctor.what_if import WhatIf
from tests.doctor.cases import (
    ON_ACCELERATORS,
    PAIRS,
    RUN_AGAIN,
    SMALL_BYTES,
    Case,
    Small,
    diagnosed,
    held_outputs,
    keeping,
    outputs_in_state,
    unchecked,
)
from tests.doctor.test_watch import hooks


def test_one_step_runs_without_the_watch_and_then_enough_with_it() -> None:
    case, session = keeping("numbers"), Session("name", device=Small())
    for _ in range(STEPS):
        case.step()
        assert session.boundary() is None
    case.step()
    found = session.boundary()
    assert found is not None
    assert found.target == "name"
    assert found.steps == len(found.levels) == STEPS
    assert found.samples is None
    assert (found.device_type, found.budget_bytes) == ("cpu", SMALL_BYTES)
    assert found.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found.duration_s > 0
    assert found.notes == ()


def test_the_profile_is_that_of_the_judged_step() -> None:
    found = diagnosed(held_outputs(False))
    assert found.profile.peak_bytes == found.peak_bytes
    assert max(found.profile.live_bytes) == found.peak_bytes
    assert {phase.name for phase in found.profile.phases} == {"forward", "backward"}, "a fused update allocates nothing"
    kinds = {part.name: part.size_bytes for part in found.profile.breakdown.kinds}
    assert sum(kinds.values()) == pytest.approx(found.peak_bytes, rel=0.01)


def test_the_model_and_the_device_are_found_by_the_first_step() -> None:
    case = outputs_in_state(False)
    session = Session("name", lambda: {"step": case.step})
    found = None
    while found is None:
        case.step()
        found = session.boundary()
    assert found.device_type == "cpu"
    assert [finding.id for finding in found.findings] == ["dead-at-peak"]
    assert {place.module for place in found.findings[0].places} == {"head"}


def test_what_is_checked_is_what_was_asked_for() -> None:
    chosen = [member for member in members() if member.id in ("grows", "no-gradient")]
    found = diagnosed(held_outputs(False), detectors=chosen)
    assert found.checked == ("grows", "no-gradient")
    assert found.findings == ()
    assert found.unchecked == ()


def test_all_kinds_are_checked_or_said_not_to_be() -> None:
    found = diagnosed(keeping("numbers"))
    aside = ON_ACCELERATORS | RUN_AGAIN
    assert found.checked == tuple(member.id for member in members() if member.id not in aside)
    found = diagnosed(keeping("numbers"), saves=False)
    assert unchecked(found) == ["saved-unused"]
    assert "torch.func" in next(each.reason for each in found.unchecked if each.id == "saved-unused")
    assert {*found.checked, "saved-unused"} | aside == {member.id for member in members()}


class Refusing(Detector):
    """Cannot look for anything, and fails if it has to."""

    id = "refusing"
    about = "nothing"

    def unchecked(self, observation: Observation) -> str:
        return "it has no mind to"

    def find(self, observation: Observation) -> Iterator[Finding]:
        raise AssertionError("`find` was called although nothing can be found")


def test_what_cannot_be_looked_for_is_not_asked() -> None:
    found = diagnosed(keeping("numbers"), detectors=[Refusing()])
    assert found.checked == ()
    assert [(each.id, each.reason) for each in found.unchecked] == [("refusing", "it has no mind to")]


def test_an_end_before_a_whole_step_is_nothing() -> None:
    session = Session("name", device=Small())
    assert session.end() is None
    case, session = keeping("numbers"), Session("name", device=Small())
    case.step()
    assert session.boundary() is None
    assert session.end() is None
    assert gc.isenabled()


def test_an_early_end_says_so() -> None:
    before = hooks()
    case, session = keeping("numbers"), Session("name", device=Small())
    for _ in range(3):
        case.step()
        session.boundary()
    found = session.end("it was enough")
    assert found is not None
    assert found.notes == ("it was enough",)
    assert found.steps == 2
    assert unchecked(found) == ["grows", "graph-kept", "graph-grows", "dead-at-peak"]
    assert hooks() == before


@pytest.mark.parametrize("steps", range(4))
def test_a_session_that_is_closed_leaves_nothing_behind(steps: int) -> None:
    before, backward = hooks(), torch.autograd.backward
    case, session = keeping("numbers"), Session("name", device=Small())
    for _ in range(steps):
        case.step()
        session.boundary()
    assert gc.isenabled() == (steps == 0)
    session.close()
    session.close()
    assert hooks() == before
    assert torch.autograd.backward is backward
    assert gc.isenabled()
    case.step()


def trained(make: Callable[[], Case], watches: bool) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    """Returns the weights and the random state after some steps, and the bytes that are left alive."""
    gc.collect()  # what is released meanwhile would count
    meter = HostMeter()
    meter.start()
    try:
        case = make()
        session = Session("name", lambda: {"step": case.step}, [case.model], Small()) if watches else None
        for _ in range(STEPS + 4):
            case.step()
            if session is not None and session.boundary() is not None:
                session = None
        gc.collect()
        live_bytes = meter.live_bytes()
    finally:
        meter.stop()
    assert session is None
    return list(case.model.parameters()), torch.get_rng_state(), live_bytes


@pytest.mark.parametrize("name", ["held outputs", "outputs in state", "zeroed", "adversarial", "taught"])
def test_a_whole_session_changes_neither_the_training_nor_what_it_keeps(name: str) -> None:
    """The holders are asked in the middle of a step, at its peak."""
    make = partial(PAIRS[name].make, False)
    (plain, plain_random, plain_bytes), (watched, random, live_bytes) = trained(make, False), trained(make, True)
    assert all(torch.equal(first, second) for first, second in zip(plain, watched, strict=True))
    assert torch.equal(plain_random, random)
    assert live_bytes == plain_bytes


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_afterwards_as_it_was(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    try:
        with collection_off():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_compiled_models_are_noted_and_run_as_they_were_written() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(64, 4), nn.Tanh()), backend="eager")

    def step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        model.zero_grad()

    found = diagnosed(Case(model, step))
    torch.compiler.reset()
    assert found.notes == (COMPILED,)
    assert found.profile.live_bytes


def test_compiled_functions_run_as_they_were_written() -> None:
    called: list[str] = []

    def backend(graph: object, inputs: object) -> object:
        called.append("compiled")
        return graph.forward  # type: ignore[attr-defined]  # of a graph module

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with uncompiled():
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert called == []
    compiled(torch.ones(2))
    assert called == ["compiled"]
    torch.compiler.reset()


def finding(minor: bool = False, **size: int) -> Finding:
    return Finding(id="x", what="x", remedy="x", minor=minor, size=Size(**size) if size else None)  # type: ignore[arg-type]


def test_growth_comes_first_then_the_costliest_and_minor_ones_last() -> None:
    small, large = finding(peak_bytes=1), finding(peak_bytes=100)
    slow, fast = finding(bytes_per_step=1), finding(host_bytes_per_step=5)
    none, minor, least = finding(), finding(True, bytes_per_step=9), finding(True, peak_bytes=1)
    assert sorted([least, small, none, slow, minor, large, fast], key=_rank) == [
        fast, slow, large, small, none, minor, least,
    ]  # fmt: skip


def test_without_time_for_further_steps_sizes_are_replayed_and_what_needs_them_is_not_checked() -> None:
    def what_if(held: Callable[[], Any]) -> WhatIf:
        return WhatIf(lambda: pytest.fail("a further step"), Cpu(), held, until_s=0.0)

    case = PAIRS["taught"].make(False)
    found = diagnosed(case, what_if=what_if)
    (finding,) = [each for each in found.findings if each.id == "saved-unused"]
    assert finding.size is not None
    assert (finding.size.basis, finding.confirmed, finding.speed) == ("replayed", "", None)
    reasons = {each.id: each.reason for each in found.unchecked}
    assert {reasons[name] for name in RUN_AGAIN} == {OVER}
