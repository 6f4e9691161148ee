"""Whole steps on the worst batch come first."""

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.budget import Clock
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.probing.watchdog import Watchdog
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, Seen


@pytest.mark.parametrize(("purpose", "parts", "steps"), [(Purpose.PROOF, 4, 3), (Purpose.PROBE, 2, 2)])
@pytest.mark.fault("F36")
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
    assert outcome.measurement.step_times_s == pytest.approx((0.4,) * 4)  # on each of four batches as often


@pytest.mark.parametrize(("left_s", "timed", "phases"), [(0.0, 0, False), (0.02, 1, False), (60.0, 3, True)])
def test_a_proof_with_little_time_left_runs_the_steps_that_it_needs(left_s: float, timed: int, phases: bool) -> None:
    calls = 0

    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        time.sleep(0.02)
        return F.cross_entropy(model(batch[0]), batch[1])

    # The time passes in the third whole step on the worst batch.
    watch = Watchdog(Clock(lambda: 100.0 - left_s if calls >= 3 else 0.0, limit_s=100.0, start=0.0))
    workload = Workload(targets.mlp(), targets.vectors(), step_fn=slow, optimizer=torch.optim.SGD)
    with LocalBench(workload, CPU(), PLENTY, watch=watch) as bench:
        calls = 0
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.measured, outcome.reason
    found = outcome.measurement
    assert found is not None
    assert found.proven
    assert found.worst_steps == 3
    assert found.memory.judged_bytes > 0
    assert found.of_worst_batch is (timed == 0)
    assert timed <= len(found.step_times_s) <= (timed or 3) + 2 * phases
    assert bool(found.phases_s) is phases
