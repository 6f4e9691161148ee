"""Wherever in a step memory runs out, that is an outcome, and afterwards the device is as it was."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, FREE, MIB, Sized, adam, outside_bytes, own_loss, rows, sized
from tests.digests import digest_of
from tests.fakes import notes
from tests.phantom.phantom import Phantom

Cap = Callable[[int], None]


@dataclass(frozen=True)
class Fault:
    """A model that needs more than `room` MiB in the `step`-th step's `phase`, and less before."""

    phase: str
    step: int
    room: int
    weight: int = 1
    held: int = 0
    taken: int = 0


# Batches have 8 samples. With Adam there are a weight w, a gradient w, state 2 w, and 2 w more while it updates.
FAULTS = [
    Fault("forward", 1, room=500, held=80),  # 640 at once
    Fault("backward", 1, room=500, held=40, taken=40),  # 320, then 640
    Fault("optimizer", 1, room=100, weight=24),  # 2 w in backward, 6 w while updating
    Fault("forward", 2, room=290, weight=16, held=32),  # w + 256 at first, then 3 w + 256
    Fault("backward", 2, room=290, weight=16, held=16, taken=16),  # w + 128, w + 256; then 3 w + 256
]
NAMES = [f"{fault.phase}-{fault.step}" for fault in FAULTS]


class Steps:
    """The user's step, which counts."""

    def __init__(self) -> None:
        self.sizes = notes()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.sizes.append(len(batch[0]))
        loss: torch.Tensor = model(batch[0])
        return loss


def check(fault: Fault, device: Device, shrink: Callable[[], None], grow: Callable[[], None]) -> None:
    """Runs the fault's model with little room, then with enough, and looks at what is left each time."""
    steps = Steps()
    workload = sized(steps, weight=fault.weight, held=fault.held, taken=fault.taken)
    before = digest_of(workload.model)
    shrink()
    with LocalBench(workload, device, FREE) as bench:
        device.release()
        live, segments = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        ooms = device.counters().ooms
        steps.sizes.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY, outcome
        assert (outcome.phase, len(steps.sizes)) == (fault.phase, fault.step)
        assert "out of memory" in outcome.reason
        assert outcome.measurement is None
        assert device.counters().ooms == ooms + 1
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (live, segments)
        assert digest_of(workload.model) == before
        grow()
        again = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert again.measured, again
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (live, segments)
    assert digest_of(workload.model) == before


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
@pytest.mark.fault("F01", "F02", "F03")
def test_at_the_allocators_limit(fault: Fault, device: Device, cap: Cap) -> None:
    check(fault, device, lambda: cap(fault.room * MIB), lambda: cap(2048 * MIB))


@pytest.mark.phantom
@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_when_another_process_has_the_rest_of_the_card(fault: Fault, device: Device, phantom: Phantom) -> None:
    def shrink() -> None:
        mine = torch.cuda.memory_reserved()
        phantom.take(torch.cuda.mem_get_info()[0] + mine - fault.room * MIB)

    check(fault, device, shrink, phantom.give_back)


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
@pytest.mark.fault("F01", "F02", "F03")
def test_inside_the_budget_that_is_enforced(fault: Fault, device: Device) -> None:
    """From an empty cache, as a training begins: no smaller step goes before."""
    steps = Steps()
    workload = sized(steps, weight=fault.weight, held=fault.held, taken=fault.taken)
    budget = BATCHING.model_copy(update={"memory_budget": outside_bytes() + fault.room * MIB})
    with LocalBench(workload, device, budget) as bench:
        live = torch.cuda.memory_allocated()
        steps.sizes.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY, outcome
        assert (outcome.phase, len(steps.sizes)) == (fault.phase, fault.step)
        assert torch.cuda.memory_allocated() == live
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(1.0)


def test_a_model_that_does_not_fit_beside_its_own_weights(device: Device, cap: Cap) -> None:
    """The smallest batch there is: what is tried first says it, not a traceback."""
    workload = sized(weight=8, held=400)
    cap(300 * MIB)
    with LocalBench(workload, device, FREE) as bench:
        for size in bench.briefing.space.sizes[:2]:
            plan = bench.briefing.space.baseline.replace(micro_batch_size=size)
            assert bench.evaluate(plan, Purpose.PROBE).status is Status.OUT_OF_MEMORY


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
def test_in_a_race_and_in_a_proof(purpose: Purpose, device: Device, cap: Cap) -> None:
    cap(500 * MIB)
    with LocalBench(sized(held=80), device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
        assert (outcome.status, outcome.phase) == (Status.OUT_OF_MEMORY, "forward")


def raising(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step whose author reports an out-of-memory as an error of their own."""
    try:
        loss: torch.Tensor = model(batch[0])
        return loss
    except torch.OutOfMemoryError:
        raise ValueError("my model is too large for this card") from None


@pytest.mark.fault("F08")
def test_one_that_the_users_code_renames_is_known_by_the_allocators_counter(device: Device, cap: Cap) -> None:
    cap(500 * MIB)
    with LocalBench(sized(raising, held=80), device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert outcome.reason.startswith("the allocator ran out of memory 1 times")
    assert "my model is too large" in outcome.reason


class Keeping:
    """A step that holds on to the exception, and so to its frames."""

    def __init__(self) -> None:
        self.errors = notes()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        hidden = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        try:
            loss: torch.Tensor = model(batch[0])
            return loss
        except RuntimeError as error:
            self.errors.append(error)
            raise
        finally:
            assert hidden.numel()


@pytest.mark.fault("F13")
def test_an_exception_that_is_kept_keeps_no_memory(device: Device, cap: Cap) -> None:
    keeping = Keeping()
    cap(500 * MIB)
    with LocalBench(sized(keeping, held=80), device, FREE) as bench:
        live = torch.cuda.memory_allocated()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY
        assert len(keeping.errors) == 1
        assert torch.cuda.memory_allocated() == live
        assert outcome.leaked == ""


def test_optimizer_state_of_the_users_survives_an_out_of_memory(device: Device, cap: Cap) -> None:
    """A running training's optimizer: its state is on the device, before and after, and is the same."""
    model = Sized(weight=8, held=80)
    optimizer = adam(model.parameters())
    workload = Workload(model, rows(), step_fn=own_loss, optimizer=optimizer)
    model(torch.ones(1, 4, device="cuda")).backward()
    optimizer.step()
    state = optimizer.state[model.weight]["exp_avg"]
    state.copy_(torch.arange(state.numel(), dtype=torch.float32))
    before = digest_of(model, optimizer)
    cap(500 * MIB)
    with LocalBench(workload, device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY
    assert optimizer.state[model.weight]["exp_avg"] is state
    assert float(state[-1]) == state.numel() - 1
    assert digest_of(model, optimizer) == before
