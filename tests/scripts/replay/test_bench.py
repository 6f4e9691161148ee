"""The device that is a table: the table's noise, drift, memory, failures and cost, the same for the same seed."""

import math
import random
from dataclasses import replace
from statistics import fmean, median, pstdev
from typing import Any

import pytest

from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.search.search import run
from scripts.bench.search.replay import TableBench, limited
from scripts.bench.search.replay.table import Block, Entry, Table
from scripts.bench.search.tables import record, synthetic
from tests.fakes import MIB, OPTIMIZER, PRECISION, FakeBench, always, small_bench, space_of, tuning_of

SPEED = Objective()


def device(**changes: Any) -> FakeBench:
    space = space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8)
    return replace(small_bench(space=space, noise=0.04, drift=0.0), **changes)


@pytest.fixture(scope="module")
def table() -> Table:
    return limited(record(device(), "small", rounds=8), 1500 * MIB)


def entry_of(table: Table, plan: Plan) -> Entry:
    return next(entry for entry in table.entries if entry.plan == plan)


def with_entry(table: Table, entry: Entry) -> Table:
    entries = tuple(entry if each.plan == entry.plan else each for each in table.entries)
    return table.model_copy(update={"entries": entries})


def times(bench: TableBench, plan: Plan, purpose: Purpose, count: int) -> list[tuple[float, ...]]:
    found = [bench.evaluate(plan, purpose).measurement for _ in range(count)]
    assert None not in found
    return [measurement.step_times_s for measurement in found if measurement is not None]


def test_step_times_are_spread_as_in_the_table(table: Table) -> None:
    plan = table.space.baseline
    recorded = [t for block in entry_of(table, plan).blocks for t in block.step_times_s]
    drawn = [t for steps in times(TableBench(table), plan, Purpose.BLOCK, 400) for t in steps]
    assert fmean(drawn) == pytest.approx(fmean(recorded), rel=0.02)
    assert 0.7 < pstdev(drawn) / pstdev(recorded) < 1.4


@pytest.mark.parametrize("tokens", [90.0, None])
def test_where_batches_differ_each_step_keeps_its_place(table: Table, tokens: float | None) -> None:
    plan = table.space.baseline
    fast = Block(at_s=0.0, step_times_s=(1.0, 2.0, 6.0), tokens_per_step=tokens, cycle=3)
    slow = Block(at_s=1e-9, step_times_s=(1.2, 3.0, 7.8), tokens_per_step=tokens, cycle=3)
    entries = [e if e.plan != plan else e.model_copy(update={"blocks": (fast, slow)}) for e in table.entries]
    bench = TableBench(table.model_copy(update={"entries": tuple(entries)}))
    shares = set[tuple[float, float]]()
    for _ in range(40):
        measurement = bench.evaluate(plan, Purpose.PROOF).measurement
        assert measurement is not None
        assert measurement.cycle == 3
        first, second, third, *more = measurement.step_times_s
        level = fmean((first, second, third))
        shares.add((round(first / level, 6), round(more[0] / level, 6)))
    # Of each block, and behind it of each, at the level of the first: 1 of 3 seconds, and 1.2 of 4.
    assert shares == {(a, b) for a in (0.333333, 0.3) for b in (0.333333, 0.3)}


def test_runs_of_a_plan_differ_as_its_recorded_blocks_do() -> None:
    calm, restless = (record(device(noise=0.001, drift=drift), "x", rounds=8) for drift in (0.0, 0.05))
    spreads = []
    for found in (calm, restless):
        levels = [
            math.log(median(steps)) for steps in times(TableBench(found), found.space.baseline, Purpose.PROBE, 60)
        ]
        spreads.append(pstdev(levels))
    assert spreads[0] < 0.003
    assert 0.015 < spreads[1] < 0.09


@pytest.mark.parametrize("trap", ["plain", "drifting", "heavy_noise"])
def test_what_many_runs_average_to_is_known_beforehand_and_is_the_truth_of_a_trap(trap: str) -> None:
    made = synthetic(trap)
    table = made.table
    bench = TableBench(table)
    known = bench.throughputs(SPEED)
    measured = [entry for entry in table.entries if entry.outcome.measured]
    assert set(known) == {entry.plan.key for entry in measured}
    for entry in random.Random(0).sample(measured, 5):
        logs = []
        for _ in range(600):
            bench.time.advance(97.0)  # so that runs fall on all moments of the drift
            logs.append(-math.log(median(times(bench, entry.plan, Purpose.BLOCK, 1)[0]) / entry.plan.global_batch_size))
        assert known[entry.plan.key] == pytest.approx(made.bench.samples_per_s(entry.plan))
        assert fmean(logs) == pytest.approx(math.log(known[entry.plan.key]), abs=0.02)


def test_one_stalled_block_does_not_make_a_plan_slow(table: Table) -> None:
    """A race clips it, so the truth that searches are scored by does too."""
    plan = table.space.baseline
    entry = entry_of(table, plan)
    first, *rest = entry.blocks
    stalled = first.model_copy(update={"step_times_s": tuple(7 * seconds for seconds in first.step_times_s)})
    calm, shaken = (
        TableBench(with_entry(table, entry.model_copy(update={"blocks": (block, *rest)}))).throughputs(SPEED)[plan.key]
        for block in (first, stalled)
    )
    assert shaken == pytest.approx(calm * math.exp(-0.5 / len(entry.blocks)), rel=0.02)
    assert shaken > 1.1 * calm * 7 ** (-1 / len(entry.blocks))  # the mean with all of the stall


def test_drift_is_common_to_what_runs_side_by_side() -> None:
    """The ratio of neighbouring blocks is calmer than the blocks: what the machine did to both cancels."""
    small = limited(record(device(noise=0.001), "x", rounds=6), 1500 * MIB)
    swing = [
        entry.model_copy(
            update={
                "blocks": tuple(
                    block.model_copy(
                        update={
                            "step_times_s": tuple(t * (1 + 0.2 * math.sin(block.at_s / 30)) for t in block.step_times_s)
                        }
                    )
                    for block in entry.blocks
                )
            }
        )
        for entry in small.entries
    ]
    bench = TableBench(small.model_copy(update={"entries": tuple(swing)}))
    fits = [entry.plan for entry in swing if entry.outcome.measured]
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(300):
        for plan, found in ((fits[0], mine), (fits[1], theirs)):
            found.append(math.log(median(times(bench, plan, Purpose.BLOCK, 1)[0])))
        bench.time.advance(5.0)
    ratios = [a - b for a, b in zip(mine, theirs, strict=True)]
    assert pstdev(mine) > 0.08
    assert pstdev(ratios) < 0.6 * pstdev(mine)


def test_a_probe_and_a_proof_cost_what_was_recorded_and_a_block_its_steps(table: Table) -> None:
    plan, bench = table.space.baseline, TableBench(table)
    clock = Clock(bench.time)
    bench.evaluate(plan, Purpose.PROBE)
    assert clock.elapsed_s == pytest.approx(entry_of(table, plan).outcome.duration_s)
    bench.evaluate(plan, Purpose.PROOF)
    assert clock.elapsed_s == pytest.approx(2 * entry_of(table, plan).outcome.duration_s)
    before = clock.elapsed_s
    (steps,) = times(bench, plan, Purpose.BLOCK, 1)
    assert clock.elapsed_s - before == pytest.approx(sum(steps) * 5 / 4)


def test_a_block_of_windows_costs_all_their_steps(table: Table) -> None:
    plan = table.space.baseline
    entry = entry_of(table, plan)
    wide = tuple(block.model_copy(update={"steps_per_window": 10}) for block in entry.blocks)
    bench = TableBench(with_entry(table, entry.model_copy(update={"blocks": wide})))
    clock = Clock(bench.time)
    measurement = bench.evaluate(plan, Purpose.BLOCK).measurement
    assert measurement is not None
    assert measurement.steps_per_window == 10
    assert clock.elapsed_s == pytest.approx(sum(measurement.step_times_s) * 41 / 4)


def test_memory_is_as_recorded(table: Table) -> None:
    plan = table.space.baseline
    recorded = entry_of(table, plan).outcome.measurement
    found = TableBench(table).evaluate(plan, Purpose.PROBE).measurement
    assert recorded is not None
    assert found is not None
    assert found.memory == recorded.memory
    assert found.samples_per_step == recorded.samples_per_step


def test_the_same_seed_gives_the_same_answers_and_another_seed_others(table: Table) -> None:
    bench = TableBench(table, seed=3)
    plans = [entry.plan for entry in table.entries][:10]
    first = [bench.evaluate(plan, Purpose.PROBE) for plan in plans]
    bench.rewind(3)
    assert bench.time() == 0
    assert [bench.evaluate(plan, Purpose.PROBE) for plan in plans] == first
    other = TableBench(table, seed=4)
    assert [other.evaluate(plan, Purpose.PROBE) for plan in plans] != first


@pytest.mark.parametrize("purpose", Purpose)
def test_a_failure_is_answered_as_it_was_recorded(table: Table, purpose: Purpose) -> None:
    failed = next(entry for entry in table.entries if entry.outcome.status is Status.OUT_OF_MEMORY)
    bench = TableBench(table)
    assert bench.evaluate(failed.plan, purpose) == failed.outcome
    assert bench.time() == failed.outcome.duration_s > 0


def test_other_failures_are_kept_too() -> None:
    plan = device().space.baseline
    bench = device(faults={plan.key: always(Status.NUMERIC, "the loss is not finite")})
    outcome = TableBench(record(bench, "x", rounds=1)).evaluate(plan, Purpose.PROBE)
    assert (outcome.status, outcome.reason) == (Status.NUMERIC, "the loss is not finite")


def test_blocks_fail_as_often_as_they_did(table: Table) -> None:
    entry = entry_of(table, table.space.baseline)
    bad = Block(at_s=1.0, reason="out of memory: tried to allocate 2 GiB")
    half = entry.model_copy(update={"blocks": (*entry.blocks[:2], bad, bad)})
    bench = TableBench(with_entry(table, half))
    outcomes = [bench.evaluate(entry.plan, Purpose.BLOCK) for _ in range(200)]
    failed = [outcome for outcome in outcomes if not outcome.measured]
    assert 60 < len(failed) < 140
    assert {(o.status, o.reason) for o in failed} == {(Status.OUT_OF_MEMORY, "tried to allocate 2 GiB")}
    assert all(bench.evaluate(entry.plan, Purpose.PROBE).measured for _ in range(50))


def test_plans_without_blocks_are_played_from_their_probes(table: Table) -> None:
    entry = entry_of(table, table.space.baseline)
    probed = tuple(each.model_copy(update={"blocks": ()}) for each in table.entries)
    bench = TableBench(table.model_copy(update={"entries": probed}))
    drawn = {t for steps in times(bench, entry.plan, Purpose.PROOF, 40) for t in steps}
    assert entry.outcome.measurement is not None
    assert sorted(drawn) == pytest.approx(sorted(entry.outcome.measurement.step_times_s))


def test_an_incomplete_table_is_refused(table: Table) -> None:
    with pytest.raises(UsageError, match="lacks 1 of 45 plans"):
        TableBench(table.model_copy(update={"entries": table.entries[1:]}))


def test_a_plan_outside_the_grid_is_refused(table: Table) -> None:
    with pytest.raises(UsageError, match="no entry for micro_batch_size=7"):
        TableBench(table).evaluate(table.space.baseline.replace(micro_batch_size=7), Purpose.PROBE)


def test_a_whole_search_runs_on_a_table(table: Table) -> None:
    bench = TableBench(table)
    tuning = tuning_of(device(), evaluate=bench.evaluate, clock=Clock(bench.time))
    findings = run(tuning)
    best, found = table.best(SPEED), entry_of(table, findings.plan)
    assert best is not None
    assert (found.score(SPEED) or 0) > 0.9 * (best.score(SPEED) or 0)
    assert found.outcome.measured
    spent = sum(entry_of(table, t.plan).outcome.duration_s for t in findings.trials if t.outcome.status != "skipped")
    assert bench.time() > spent > 0


def test_over_budget_on_a_host_carries_its_measurement() -> None:
    whole = record(device(), "host", rounds=1)
    host = whole.model_copy(update={"environment": whole.environment.model_copy(update={"device_type": "cpu"})})
    bench = TableBench(limited(host, 1500 * MIB))
    outcomes: list[Outcome] = [bench.evaluate(entry.plan, Purpose.PROBE) for entry in host.entries]
    over = [outcome for outcome in outcomes if not outcome.measured]
    assert over
    assert all(o.status is Status.OVER_BUDGET and o.measurement is not None for o in over)
