"""What the watched steps show, on trainings whose tensors are known."""

import pytest
import torch
from torch import nn

from autofit.core.account import Account
from autofit.doctor.observation import STEPS, places
from tests.doctor.cases import (
    PAIRS,
    Case,
    adversarial,
    keeping,
    observed,
    peak_bytes,
    recurrent,
    retained,
    taught,
    zeroed,
)

HOST = Account(allocator="host")


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.exact])
def test_the_peak_is_that_of_the_allocation_record(name: str, good: bool) -> None:
    make = PAIRS[name].make
    assert observed(make(good)).peak_bytes == pytest.approx(peak_bytes(lambda: make(good)), abs=16)


def test_the_last_step_but_one_is_judged() -> None:
    observation = observed(keeping("numbers"))
    assert observation.step == STEPS - 1
    assert len(observation.watch.levels) == STEPS
    assert len(set(observation.watch.levels[1:])) == 1, "steps are alike"
    names = [mark.name for mark in observation.views.trace.marks]
    assert set(names[:-1]) == {f"step {STEPS - 1} {phase}" for phase in ("forward", "backward", "optimizer")}
    assert names[-1] == "end"


def test_the_judged_step_is_as_large_as_each_other() -> None:
    """A step's trace begins with what is alive: its level at the end is that of the whole record."""
    observation = observed(keeping("ring"))
    trace = observation.views.trace
    left = trace.alive(len(trace.events))
    assert sum(trace.tensors.sizes[handle] for handle in left) == observation.watch.levels[observation.step - 1]


def test_saved_and_never_used_are_found_with_the_line_of_the_call() -> None:
    bad, good = observed(taught(False)), observed(taught(True))
    assert good.unused == {}
    lines = {site.user for site in bad.unused.values()}
    assert len(lines) == 1
    assert all(bad.watch.steps[handle] == bad.step for handle in bad.unused)


def test_a_module_that_is_used_in_part_is_named_by_the_part() -> None:
    """Inside a call of which something is used, the outermost call without use counts."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = (
                nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
                nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            extra = self.unused(x)
            found: torch.Tensor = self.used(x) + extra.detach()
            return found

    model = Both()

    def step() -> None:
        model(torch.ones(64, 8)).sum().backward()
        model.zero_grad()

    observation = observed(Case(model, step))
    assert observation.unused
    unused = [call.site for call in observation.watch.calls]
    assert {site for site in observation.unused.values()} <= set(unused)
    assert set(observation.unused.values()).isdisjoint({unused[0]}), "not the call of the whole model"


def test_a_retained_graph_is_found_by_the_line_of_its_pass() -> None:
    observation = observed(retained(False))
    [site] = observation.retained
    assert site.user.startswith("tests/doctor/cases.py:")
    assert observation.retained_handles == frozenset(observation.retained[site])
    assert observed(retained(True)).retained == {}


def test_a_graph_that_is_used_twice_is_not_called_retained() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def step() -> None:
        out = model(torch.ones(64, 64))
        out.sum().backward(retain_graph=True)
        out.mean().backward()
        model.zero_grad()

    observation = observed(Case(model, step))
    assert observation.watch.retained
    assert observation.retained == {}


def test_gaps_of_zeroed_gradients_are_those_of_the_judged_step() -> None:
    observation = observed(zeroed(False))
    first, last = observation.views.events
    parameters = sum(1 for _ in observation.watch.parameters())
    assert len(observation.zero_gaps) == parameters
    assert all(first <= begun < ended < last for _, begun, ended in observation.zero_gaps)
    assert len(observation.zeroing_places) == 1
    assert observed(zeroed(True)).zero_gaps == []


@pytest.mark.parametrize(
    ("name", "rises", "carries"),
    [("sum after backward", True, True), ("losses", True, False), ("numbers", False, False)],
)
def test_a_graph_that_has_nodes_of_each_step_is_carried(name: str, rises: bool, carries: bool) -> None:
    observation = observed(keeping(name))
    assert observation.graph_rises == rises
    assert len(observation.carried) == carries


def test_parameters_of_optimizers_are_known() -> None:
    case = adversarial(True)
    observation = observed(case)
    assert observation.optimized == {id(parameter) for parameter in case.model.parameters()}
    assert {name for name, _ in observation.names.values()} == {name for name, _ in case.model.named_parameters()}


def test_without_an_update_nothing_is_optimized() -> None:
    assert observed(recurrent(True)).optimized == set()


def test_bytes_are_those_of_the_devices_allocator() -> None:
    host, caching = observed(keeping("losses")), observed(keeping("losses"), Account(allocator="caching"))
    handles = [handle for group in host.grown.values() for handle in group]
    assert host.size_of(handles) == 4 * len(handles)
    handles = [handle for group in caching.grown.values() for handle in group]
    assert caching.size_of(handles) == 512 * len(handles)


def test_allocations_of_two_steps_have_the_same_places() -> None:
    watch = observed(keeping("numbers")).watch
    fifth, sixth = places(watch, 5), places(watch, 6)
    now = {place for place, handle in fifth.items() if watch.steps[handle] == 5}
    assert now == {place for place, handle in sixth.items() if watch.steps[handle] == 6}
    assert len(now) > 10
