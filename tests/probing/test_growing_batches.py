"""Batches grow before a proof is timed, and a block begins with its largest ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Counters
from autofit.probing.local_bench import LocalBench
from autofit.probing.probe import by_size
from autofit.workloads.batch_store import BatchStore
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime, notes
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, Caching, Seen, hidden


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("parts", [1, 3, 20, 100])
def test_in_the_order_of_their_size_the_steps_are_the_same_work(parts: int, rising: bool) -> None:
    store = BatchStore(source_of(targets.sentences((*range(3, 20), 40), batch_size=2, samples=90)))
    typical = store.typical(2, parts)
    ordered, steps = by_size(typical, rising=rising), typical.cycle
    lengths = [batch["input_ids"].shape[1] for step in range(steps) for batch in ordered.of_step(step)]
    assert lengths == sorted(lengths, reverse=not rising)
    assert sorted(lengths) == sorted(
        batch["input_ids"].shape[1] for step in range(steps) for batch in typical.of_step(step)
    )
    assert ordered.tokens_per_step(steps) == pytest.approx(typical.tokens_per_step(steps))


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
