"""The observer: who holds what at the peak, what grows, and when an observation ends."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autofit.core.account import Account
from autofit.devices.cpu import HostMeter
from autofit.doctor.observation import GROWING, STEPS, Observation
from autofit.doctor.observer import Observer
from autofit.doctor.session import collection_off
from autofit.doctor.watch import Watch
from autofit.memory.trace import Kind
from tests.doctor.cases import (
    LEAKS,
    SMALL_BYTES,
    Case,
    held_outputs,
    keeping,
    observed,
    thawed,
)

HOST = Account(allocator="host")


def test_what_is_held_at_the_peak_is_known_by_name() -> None:
    observation = observed(held_outputs(False))
    assert observation.asked
    assert {holder.path for holder in observation.held.values()} == {"outputs", "loss"}
    [handle] = (handle for handle, holder in observation.held.items() if holder.path == "outputs")
    assert observation.watch.steps[handle] == observation.step
    assert observation.form_of(handle) == "float32 [512, 2000]"
    assert observation.module_of(handle) == "head"
    assert observation.saved_bytes(ends=[handle]) == 4 * 512 * 2000


def test_nothing_is_held_by_the_good_one() -> None:
    observation = observed(held_outputs(True))
    assert observation.asked
    assert {holder.path for holder in observation.held.values()} == {"loss"}, "four bytes"
    assert observation.saved_bytes(ends=observation.held) == 4
    assert observation.saved_bytes() == 0


def test_a_step_that_peaks_elsewhere_the_next_time_is_not_asked() -> None:
    torch.manual_seed(0)
    model, count = nn.Linear(64, 64), 0

    def step() -> None:
        nonlocal count
        count += 1
        held = model(torch.ones(1000, 64))
        if count <= STEPS:  # one is not watched
            held.exp().sum().backward()
        else:
            held.sum().backward()

    observation = observed(Case(model, step))
    assert not observation.asked
    assert observation.held == {}


def test_growth_is_what_each_of_the_last_steps_left() -> None:
    observation = observed(keeping("detached outputs"))
    [handles] = observation.grown.values()
    assert observation.size_of(handles) == 4 * 64 * 10
    assert all(observation.grows(handle) for handle in handles)
    [holder] = observation.growers.values()
    assert holder is not None
    assert holder.path.startswith("kept[")
    assert observation.cycles == frozenset()


@pytest.mark.parametrize("name", ["detached outputs", "outputs", "evaluation with gradients", "cycle", "hook"])
def test_growth_is_as_fast_as_the_allocation_record_says(name: str) -> None:
    make = LEAKS[name].make
    observation = observed(make())
    handles = [handle for group in observation.grown.values() for handle in group]
    assert observation.size_of(handles) == growth(make)


def growth(make: Callable[[], Case]) -> int:
    """Returns the bytes that a step leaves behind, from torch's allocation record."""
    meter, levels = HostMeter(), []
    with collection_off():
        meter.start()
        case = make()
        for _ in range(4):
            case.step()
            levels.append(meter.live_bytes())
        meter.stop()
    del case
    gc.collect()
    return levels[-1] - levels[-2]


@pytest.mark.parametrize("steps", range(1, GROWING))
def test_what_lasts_some_steps_is_not_growth(steps: int) -> None:
    """A list that is emptied every few steps, as a ring is, keeps less than what each of the last steps made."""
    kept, model = list[torch.Tensor](), nn.Linear(8, 8)

    def step() -> None:
        kept.append(model(torch.ones(4, 8)).detach())
        if len(kept) > steps:
            kept.pop(0)

    assert observed(Case(model, step)).grown == {}


def test_a_cycle_is_told_by_a_collection() -> None:
    observation = observed(keeping("cycle"))
    assert observation.cycles == set(observation.grown)
    assert observation.growers == {}


def test_states_of_frozen_parameters_are_found() -> None:
    case = thawed(False)
    observation = observed(case)
    frozen = {id(parameter) for parameter in case.model.parameters() if not parameter.requires_grad}
    assert observation.frozen_states.keys() == frozen
    kinds = {observation.watch.kinds[each] for handles in observation.frozen_states.values() for each in handles}
    assert kinds == {Kind.OPTIMIZER_STATE}
    assert observed(thawed(True)).frozen_states == {}


def test_an_observation_can_end_early() -> None:
    case = keeping("detached outputs")
    watch = Watch(torch.device("cpu"), [case.model])
    observer = Observer(watch, HOST, SMALL_BYTES, dict)
    with collection_off(), watch.watching():
        for _ in range(2):
            case.step()
            assert observer.boundary() is None
        found: Observation = observer.result()
    assert found.step == 2
    assert found.peak_bytes > 0
    assert found.grown == {}, "two steps decide nothing"
    assert not found.asked
