"""Whole steps on the worst batch come first, and batches grow before a proof is timed."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.budget import Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Counters
from autofit.probing.local_bench import LocalBench
from autofit.probing.watchdog import Watchdog
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime, notes
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, Caching, hidden


class Seen:
    """A step function that writes down the batches it gets, each of which takes 0.1 s."""

    def __init__(self, clock: FakeTime) -> None:
        self.clock, self.batches = clock, notes()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.clock.advance(0.1)
        self.batches.append(tuple(batch["input_ids"].shape))
        return targets.token_mean(model, batch)


@pytest.mark.parametrize(("purpose", "parts", "steps"), [(Purpose.PROOF, 4, 3), (Purpose.PROBE, 2, 2)])
def test_the_first_steps_are_whole_and_on_the_longest_samples(
    purpose: Purpose, parts: int, steps: int, step_clock: FakeTime
) -> None:
    seen = Seen(step_clock)
    # One sample in twelve is long: the typical batch of 2 has none.
    loader = targets.sentences((*[3] * 11, 40), batch_size=2)
    workload = Workload(targets.Transformer(), loader, step_fn=seen, global_batch_size=8)
    with LocalBench(workload, CPU(), PLENTY.model_copy(update={"numerics": "any"})) as bench:
        seen.batches.clear()
        plan = Plan(values={"micro_batch_size": 2, "accumulation_steps": 4})
        outcome = bench.evaluate(plan, purpose)
    assert outcome.measured
    assert seen.batches[: parts * steps] == [(2, 40)] * parts * steps
    rest = seen.batches[parts * steps :]
    assert len(rest) % 4 == 0  # timed steps are whole ones
    assert (2, 3) in rest
    assert outcome.measurement is not None
    assert outcome.measurement.worst_steps == steps
    assert outcome.measurement.samples_per_step == 8
    times = (0.4,) * (8 if purpose is Purpose.PROOF else 4)  # on each of four batches as often
    assert outcome.measurement.step_times_s == pytest.approx(times)


@pytest.mark.parametrize(("left_s", "timed", "phases"), [(0.0, 0, False), (0.02, 1, False), (60.0, 5, True)])
def test_a_proof_with_little_time_left_runs_the_steps_that_it_needs(left_s: float, timed: int, phases: bool) -> None:
    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.02)
        return F.cross_entropy(model(batch[0]), batch[1])

    watch = Watchdog(Clock(lambda: 100.0 - left_s, limit_s=100.0, start=0.0))
    workload = Workload(targets.mlp(), targets.vectors(), step_fn=slow, optimizer=torch.optim.SGD)
    with LocalBench(workload, CPU(), PLENTY, watch=watch) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.measured, outcome.reason
    found = outcome.measurement
    assert found is not None
    assert found.worst_steps == 3
    assert found.memory.judged_bytes > 0
    assert found.of_worst_batch is (timed == 0)
    assert timed <= len(found.step_times_s) <= (timed or 3) + 5 * phases
    assert bool(found.phases_s) is phases


def grown(event: Callable[[Caching], None], parts: int = 1) -> tuple[Outcome, list[Any]]:
    """Proves a plan of texts of 3 to 40 words; `event` comes with each batch after the cache was emptied."""
    lengths = notes()
    device = Caching(lengths)

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        lengths.append(int(batch["input_ids"].shape[1]))
        if "released" in lengths:
            event(device)
        return targets.token_mean(model, batch)

    loader = targets.sentences((*range(3, 20), 40), batch_size=2, samples=36)
    workload = Workload(targets.Transformer(), loader, step_fn=step_fn, global_batch_size=2 * parts)
    with LocalBench(workload, device, PLENTY.model_copy(update={"numerics": "any"})) as bench:
        lengths.clear()
        outcome = bench.evaluate(Plan(values={"micro_batch_size": 2, "accumulation_steps": parts}), Purpose.PROOF)
    return outcome, lengths


@pytest.mark.parametrize("parts", [1, 2])
def test_a_proof_has_batches_grow_from_an_empty_cache_before_it_times(parts: int) -> None:
    """And a retry of the allocator meanwhile is none of the steps that are timed."""

    def retried(device: Caching) -> None:
        device.seen = Counters(retries=1)

    outcome, lengths = grown(retried, parts)
    assert outcome.measured
    worst = 3 * parts
    assert lengths[: worst + 1] == [*[40] * worst, "released"]
    growing = lengths[worst + 1 : worst + 1 + 5 * parts]
    assert growing == sorted(growing)
    assert growing[0] < growing[-1] == 40
    assert growing[-parts:] == [40] * parts
    assert len(set(growing)) > 2


def test_a_retry_on_a_timed_step_after_that_is_one_too_many() -> None:
    def retried_later(device: Caching) -> None:
        if 40 in device.lengths[device.lengths.index("released") : -1]:  # the worst batch, with which growing ends
            device.seen = Counters(retries=1)

    outcome, _ = grown(retried_later)
    assert outcome.status is Status.OVER_BUDGET
    assert "allocator retries" in outcome.reason


def test_a_block_begins_with_its_largest_batches(step_clock: FakeTime) -> None:
    seen = Seen(step_clock)
    workload = Workload(targets.Transformer(), targets.sentences((*range(3, 20), 40), 2, 36), step_fn=seen)
    with LocalBench(workload, CPU(), PLENTY.model_copy(update={"numerics": "any"})) as bench:
        seen.batches.clear()
        assert bench.evaluate(Plan(values={"micro_batch_size": 2, "accumulation_steps": 2}), Purpose.BLOCK).measured
    warm_up, steps = seen.batches[:2], seen.batches[2:]
    assert warm_up == steps[:2]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def exhausted(device: Caching) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


@pytest.mark.parametrize(("event", "status"), [(hidden, Status.OVER_BUDGET), (exhausted, Status.OUT_OF_MEMORY)])
def test_a_plan_whose_growing_batches_run_out_of_memory_is_not_proven(
    event: Callable[[Caching], None], status: Status
) -> None:
    outcome, _ = grown(event)
    assert outcome.status is status
