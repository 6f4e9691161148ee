"""A probe that is fast enough goes on to its proof in the same run, and an end of the time keeps what it measured."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.budget import Clock
from autofit.core.measurement import Measurement
from autofit.core.outcome import LAST_BATCH, Outcome, Status
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.probing import probe as probe_module
from autofit.probing.local_bench import LocalBench
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime, notes
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY

STEP_S, EXTRA_BYTES = 0.125, 4 * 2**20


@pytest.fixture(autouse=True)
def no_steps_for_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the steps in which phases are timed: what is counted here are the steps of probe and proof."""
    monkeypatch.setattr(probe_module, "PHASES_SHARE", -1.0)


class Counted:
    """A step function that counts its calls: one needs more memory, and from one on the time is over.

    Each call takes 125 ms, exact in binary, so that all runs have as many steps. With 8 samples, the score is 64.
    """

    def __init__(self, clock: FakeTime, large: int = 0, last: int = 0) -> None:
        self.clock, self.large, self.last = clock, large, last
        self.live, self.seen, self.late = False, notes(), notes()
        self.watch = Watchdog(Clock(lambda: 101.0 if self.late else 0.0, limit_s=100.0))

    @property
    def calls(self) -> int:
        return len(self.seen)

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.clock.advance(STEP_S)
        if self.live:
            self.seen.append(1)
        extra = torch.zeros(EXTRA_BYTES // 4 if self.live and self.calls == self.large else 1)
        if self.live and self.last and self.calls > self.last:
            self.late.append(1)
            self.watch.check()
        return F.cross_entropy(model(batch[0]), batch[1]) + 0 * extra.sum()

    def run(self, terms: RunTerms, purpose: Purpose = Purpose.PROBE, samples: int = 64) -> Outcome:
        """Opens a bench, runs its baseline and leaves it."""
        workload = Workload(targets.mlp(), targets.vectors(samples), step_fn=self)
        with LocalBench(workload, CPU(), PLENTY, watch=self.watch) as bench:
            assert bench.briefing.space.baseline.micro_batch_size == 8
            self.live = True
            return bench.evaluate(bench.briefing.space.baseline, purpose, terms)


def measured(outcome: Outcome) -> Measurement:
    assert outcome.status is Status.MEASURED, outcome.reason
    assert outcome.measurement is not None
    return outcome.measurement


def test_a_proof_times_its_phases_where_that_takes_little_of_the_time_left(
    step_clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, timed = Counted(step_clock), Counted(step_clock)
    assert measured(plain.run(RunTerms(above=63.0))).phases_s == {}
    monkeypatch.setattr(probe_module, "PHASES_SHARE", 0.01)  # of 100 s, and three steps take 0.375 s
    found = measured(timed.run(RunTerms(above=63.0)))
    assert found.phases_s == {"transfer": 0.0, "forward": STEP_S, "backward": 0.0, "optimizer": 0.0}
    assert timed.calls == plain.calls + 3
    below = Counted(step_clock)
    assert measured(below.run(RunTerms(above=65.0))).phases_s == {}


def test_a_probe_above_its_terms_goes_on_to_its_proof_and_one_below_does_not(step_clock: FakeTime) -> None:
    plain, below, above = (Counted(step_clock) for _ in range(3))
    probe = measured(plain.run(OPEN))
    slow, fast = measured(below.run(RunTerms(above=65.0))), measured(above.run(RunTerms(above=63.0)))
    assert (probe.proven, slow.proven, fast.proven) == (False, False, True)
    assert (probe.worst_steps, slow.worst_steps, fast.worst_steps) == (2, 2, 3)
    assert below.calls == plain.calls
    assert above.calls == plain.calls + 3
    assert slow.step_times_s == fast.step_times_s == probe.step_times_s == pytest.approx((STEP_S,) * 4)


def test_the_memory_is_the_larger_of_both(step_clock: FakeTime) -> None:
    terms = RunTerms(above=1.0)
    usual = Counted(step_clock)
    usual_bytes = measured(usual.run(terms)).memory.judged_bytes
    for large in (1, usual.calls):  # the first step of the probe, and the last one of the proof
        found = measured(Counted(step_clock, large=large).run(terms))
        assert found.proven
        assert found.memory.judged_bytes > usual_bytes + EXTRA_BYTES // 2


def test_a_proof_above_the_memory_budget_refuses_the_plan(step_clock: FakeTime) -> None:
    usual = Counted(step_clock)
    peak = measured(usual.run(RunTerms(above=1.0))).memory.judged_bytes
    last = Counted(step_clock, large=usual.calls)
    workload = Workload(targets.mlp(), targets.vectors(), step_fn=last)
    options = PLENTY.model_copy(update={"memory_budget": str(peak + EXTRA_BYTES // 2)})
    with LocalBench(workload, CPU(), options) as bench:
        last.live = True
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE, RunTerms(above=1.0))
    assert outcome.status is Status.OVER_BUDGET
    assert outcome.measurement is not None
    assert not outcome.measurement.proven


def test_a_probe_that_begins_with_its_proof_is_proven_in_its_first_steps(step_clock: FakeTime) -> None:
    at_once, probe = Counted(step_clock), Counted(step_clock)
    found = measured(at_once.run(RunTerms(above=0.0)))
    assert found.proven
    assert found.worst_steps == 3
    probe.run(OPEN)
    assert at_once.calls == probe.calls + 1  # a third whole step, and no others


def test_only_a_probe_and_a_proof_are_proven(step_clock: FakeTime) -> None:
    proof, block = (Counted(step_clock).run(RunTerms(above=0.0), each) for each in (Purpose.PROOF, Purpose.BLOCK))
    assert measured(proof).proven
    assert not measured(block).proven


@pytest.mark.parametrize(("last", "worst_steps", "proven"), [(3, 3, True), (4, 3, True), (2, 2, False), (1, 1, False)])
def test_a_time_that_ends_keeps_the_steps_that_ran(
    step_clock: FakeTime, last: int, worst_steps: int, proven: bool
) -> None:
    """Three steps are the proof, and those after them are timed: an end among these leaves a proven plan."""
    found = measured(Counted(step_clock, last=last).run(RunTerms(above=0.0)))
    assert (found.worst_steps, found.proven) == (worst_steps, proven)
    assert found.step_time_s == pytest.approx(STEP_S)
    cut_off = f"the time ended after {last} of 3 steps on the worst batch: it is neither timed further nor proven"
    assert found.warnings == (() if proven else (cut_off,))


def test_a_time_that_ends_in_the_first_step_measures_nothing(step_clock: FakeTime) -> None:
    counted = Counted(step_clock, last=1)
    counted.seen.append(1)
    outcome = counted.run(RunTerms(above=0.0))
    assert outcome.status is Status.TIMED_OUT
    assert outcome.measurement is None


def test_a_time_that_ends_in_the_proof_of_a_probe_keeps_the_probe(step_clock: FakeTime) -> None:
    usual = Counted(step_clock)
    usual.run(RunTerms(above=1.0))
    found = measured(Counted(step_clock, last=usual.calls - 1).run(RunTerms(above=1.0)))
    assert not found.proven
    assert found.worst_steps == 2
    assert found.step_times_s == pytest.approx((STEP_S,) * 4)


class Normed(nn.Sequential):
    """Batch normalisation over vectors needs two samples."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


def of_a_plan_of_16(batch_size: int, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
    """Runs a plan of micro batches of 16 on 65 samples, so that the last one has a single sample."""
    workload = Workload(Normed(), targets.vectors(samples=65, batch_size=batch_size))
    with LocalBench(workload, CPU(), PLENTY) as bench:
        return bench.evaluate(bench.briefing.space.baseline.replace(micro_batch_size=16), purpose, terms)


@pytest.mark.parametrize(
    ("purpose", "terms"),
    [(Purpose.PROOF, OPEN), (Purpose.PROBE, RunTerms(above=0.0)), (Purpose.PROBE, RunTerms(above=1e-9))],
)
def test_the_incomplete_last_batch_of_an_epoch_is_part_of_a_proof(purpose: Purpose, terms: RunTerms) -> None:
    outcome = of_a_plan_of_16(13, purpose, terms)
    assert (outcome.status, outcome.phase) == (Status.USER_ERROR, LAST_BATCH)
    assert outcome.reason.startswith("on the incomplete last batch of an epoch")
    assert "Expected more than 1 value per channel" in outcome.reason


@pytest.mark.parametrize("purpose", [Purpose.PROBE, Purpose.BLOCK])
def test_what_is_no_proof_does_without_the_last_batch(purpose: Purpose) -> None:
    assert measured(of_a_plan_of_16(13, purpose)).last_batch == ""


def test_a_last_batch_that_fails_at_the_users_size_too_is_left_to_the_user_and_said() -> None:
    found = measured(of_a_plan_of_16(32, Purpose.PROOF))  # 65 samples in batches of 32 leave one, too
    assert "so does that of your own loader: ValueError: Expected more than 1 value" in found.last_batch


class Short:
    """A step function that fails on one or three samples: `fails` says how, for each time in turn."""

    def __init__(self, *fails: BaseException) -> None:
        self.fails, self.times = list(fails), notes()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) in (1, 3):
            self.times.append(1)
            raise self.fails.pop(0)
        return F.cross_entropy(model(batch[0]), batch[1])

    def of_a_plan_of(self, size: int, users: int) -> Measurement:
        """Proves a plan on 65 samples, given the size of the user's batches."""
        workload = Workload(targets.mlp(), targets.vectors(samples=65, batch_size=users), step_fn=self)
        with LocalBench(workload, CPU(), PLENTY) as bench:
            return measured(bench.evaluate(bench.briefing.space.baseline.replace(micro_batch_size=size), Purpose.PROOF))


def test_a_last_batch_that_is_the_users_own_is_run_once() -> None:
    step = Short(ValueError("one is too few"))
    assert "so does that of your own loader: ValueError: one is too few" in step.of_a_plan_of(32, users=32).last_batch
    assert len(step.times) == 1


def test_a_time_that_ends_in_the_users_last_batch_keeps_the_proof() -> None:
    found = Short(ValueError("one is too few"), Overdue("no time")).of_a_plan_of(16, users=31)
    assert found.proven
    assert "the time ended before it" in found.last_batch


def test_a_last_batch_for_which_no_time_is_left_is_said(step_clock: FakeTime) -> None:
    first = Counted(step_clock)
    first.run(OPEN, Purpose.PROOF)
    late = Counted(step_clock, last=first.calls)
    found = measured(late.run(OPEN, Purpose.PROOF, samples=65))
    assert found.worst_steps == 3
    assert "the time ended before it" in found.last_batch
