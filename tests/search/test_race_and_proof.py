"""The race, the choice and the proof that end a search."""

import pytest

from autofit.core.budget import Budget
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob, Trade
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.core.wording import describe_plan
from autofit.search.loop import Loop
from autofit.search.race import Race
from autofit.search.request import Event, Findings, Tuning
from autofit.search.search import run
from tests.fakes import (
    MIB,
    PRECISION,
    Effect,
    Fixed,
    MemoryLog,
    always,
    during,
    small_bench,
    space_of,
    tuning_of,
)
from tests.search.listed import at, calm, only


def test_the_answer_is_proven_raced_and_faster() -> None:
    bench, log = calm(), MemoryLog()
    findings = run(tuning_of(bench, log))
    assert bench.runs[-1] == (findings.plan, Purpose.PROOF)
    assert log.finished[-1].purpose is Purpose.PROOF
    assert findings.proof == log.finished[-1].outcome.measurement
    assert bench.regret(findings.plan) < 0.05
    true = bench.samples_per_s(findings.plan) / bench.samples_per_s(bench.space.baseline)
    assert findings.gain is not None
    assert findings.gain.low * 0.99 < true < findings.gain.high * 1.01
    assert findings.gain.pairs >= 4
    assert findings.baseline.plan == bench.space.baseline
    assert findings.stopped


def followed(tuning: Tuning) -> tuple[Findings, Loop, Race]:
    """Returns the result of a search, the search, and its race."""
    loops = list[Loop]()
    findings = run(tuning, loops.append)
    assert loops[0].race is not None
    return findings, loops[0], loops[0].race


def test_the_race_interleaves_the_finalists_with_the_baseline() -> None:
    bench = calm()
    _, loop, race = followed(tuning_of(bench))
    blocks = bench.probes(Purpose.BLOCK)
    names = list(dict.fromkeys(plan.key for plan in blocks))
    first, second = blocks[: len(names)], blocks[len(names) : 2 * len(names)]
    assert bench.space.baseline in first
    assert second == first[::-1]
    assert race.rounds == blocks.count(bench.space.baseline)
    kept = {omission.plan.combination for omission in loop.omissions}
    ran = {plan.combination for plan, _ in bench.runs}
    assert kept | ran == set(bench.space.combinations())


def test_each_round_of_the_race_tells_the_standings_with_intervals() -> None:
    bench, events = calm(), list[Event]()
    findings, _, race = followed(tuning_of(bench, listen=events.append))
    rounds = [event.standings for event in events if event.kind == "race"]
    assert len(rounds) == race.rounds
    for standings in rounds:
        rates = [standing.rate_per_s or 0 for standing in standings]
        assert rates == sorted(rates, reverse=True)
        gains = [standing.gain for standing in standings if standing.gain is not None]
        assert len(gains) == len(standings) >= 2
        assert all(gain.low <= gain.value <= gain.high for gain in gains)
    early, late = ({s.plan: s.gain for s in standings} for standings in (rounds[0], rounds[-1]))
    assert (early[findings.plan] or findings.gain).pairs == 0  # type: ignore[union-attr]  # by probes alone
    assert late[findings.plan] == findings.gain
    assert {s.plan.key: s.note for s in rounds[-1] if s.note}.items() <= race.left.items()


def test_a_baseline_that_is_best_is_returned_without_a_race() -> None:
    bench = calm()
    slow = [at(bench, 4), at(bench, 4, precision="tf32")]
    findings = run(only(bench, bench.space.baseline, *slow))
    assert findings.plan == bench.space.baseline
    assert not bench.probes(Purpose.BLOCK)
    assert findings.gain is not None
    assert findings.gain.value == 1.0
    assert bench.runs[-1] == (bench.space.baseline, Purpose.PROOF)


def test_a_tie_keeps_the_users_own_setting() -> None:
    bench = calm(effects={})
    findings = run(only(bench, bench.space.baseline, at(bench, 8, precision="bf16"), at(bench, 8, precision="tf32")))
    assert findings.plan == bench.space.baseline
    assert bench.probes(Purpose.BLOCK)


def test_alternatives_are_best_first_and_say_why_not() -> None:
    bench = calm()
    plans = [at(bench, 8, precision="tf32"), at(bench, 32, precision="bf16"), at(bench, 16)]
    findings = run(only(bench, bench.space.baseline, *plans))
    assert findings.plan == plans[1]
    assert [c.plan for c in findings.alternatives] == [plans[2], plans[0]]
    assert all("of the recommended plan's throughput" in c.note for c in findings.alternatives)
    assert all(c.gain is not None and c.gain.value > 1 for c in findings.alternatives)
    for candidate in findings.alternatives:
        ratio = candidate.over_recommended
        assert ratio is not None
        assert ratio.high < 1
        assert str(ratio) in candidate.note
        assert (ratio.pairs > 0) is (f"in {ratio.pairs} paired blocks" in candidate.note)


def test_the_front_of_speed_against_memory_is_marked() -> None:
    bench = calm()
    light, middle, best = (at(bench, size, precision="bf16") for size in (8, 16, 32))
    slow, heavy = at(bench, 16), at(bench, 32, precision="tf32")
    findings = run(only(bench, bench.space.baseline, light, slow, middle, heavy, best))
    assert findings.plan == best
    found = {c.plan: c.on_front for c in findings.alternatives}
    assert found == {light: True, middle: True, slow: False, heavy: False}
    assert not findings.baseline.on_front  # the light plan is faster with less


def test_a_plan_that_failed_after_its_probe_is_not_on_the_front() -> None:
    bench = calm()
    best, next_best = at(bench, 32, precision="bf16"), at(bench, 16, precision="bf16")
    bench.faults[best.key] = during(Purpose.PROOF, Status.OVER_BUDGET)
    findings = run(only(bench, bench.space.baseline, next_best, best))
    assert findings.plan == next_best
    assert {c.plan: c.on_front for c in findings.alternatives} == {best: False}
    assert findings.baseline.on_front


@pytest.mark.parametrize(("noise", "longer"), [(0.01, False), (0.4, True)])
def test_a_race_may_take_longer_than_the_search_where_much_may_be_lost_by_ending_it(noise: float, longer: bool) -> None:
    bench, began_s = calm(noise=noise, drift=noise / 4, effects={}), dict[str, float]()

    def listen(event: Event) -> None:
        began_s.setdefault(event.text.split()[0], bench.time.seconds)

    plans = [at(bench, size, precision=str(name)) for size in bench.space.sizes for name in PRECISION.values]
    run(only(bench, *plans, listen=listen))
    search_s, race_s = began_s["racing"], began_s["proving"] - began_s["racing"]
    assert bench.probes(Purpose.BLOCK)
    assert (race_s > 1.5 * search_s) is longer


def test_a_failed_proof_leads_to_the_next_finalist() -> None:
    bench = calm()
    best, second = at(bench, 32, precision="bf16"), at(bench, 32, precision="tf32")
    bench.faults[best.key] = during(Purpose.PROOF, Status.OVER_BUDGET, "peak above the budget")
    findings = run(only(bench, bench.space.baseline, best, second))
    assert findings.plan == second
    assert any("peak above the budget" in c for c in findings.caveats)
    noted = next(c for c in findings.alternatives if c.plan == best)
    assert "proof failed" in noted.note


@pytest.mark.parametrize("late", [True, False])
def test_after_a_proof_that_the_end_of_the_time_cut_off_no_other_is_begun(late: bool) -> None:
    bench = calm()
    best = at(bench, 32, precision="bf16")

    def hangs(purpose: Purpose) -> Outcome | None:
        if purpose is not Purpose.PROOF:
            return None
        bench.time.advance(1000.0 if late else 1.0)
        return Outcome(status=Status.TIMED_OUT, reason="hung in the proof")

    bench.faults[best.key] = hangs
    tuning = only(bench, bench.space.baseline, best, budget=Budget(memory_bytes=bench.budget_bytes, time_s=500.0))
    findings = run(tuning)
    assert findings.plan == bench.space.baseline
    (noted,) = [c for c in findings.alternatives if c.plan == best]
    assert noted.outcome.measured
    assert noted.note == (
        "it was the choice, but there was no time to prove it; give more time"
        if late
        else "its proof was not completed: timed out, hung in the proof"
    )


def test_a_block_that_was_cut_off_is_not_said_to_have_failed() -> None:
    bench = calm()
    best = at(bench, 32, precision="bf16")
    bench.faults[best.key] = during(Purpose.BLOCK, Status.TIMED_OUT, "not finished in 9 s")
    (noted,) = [c for c in run(only(bench, bench.space.baseline, best)).alternatives if c.plan == best]
    assert noted.note == "was cut off in the race: timed out, not finished in 9 s"


@pytest.mark.parametrize("step_s", [0.1, 4.0])
def test_the_time_expected_of_a_proof_grows_with_the_steps(step_s: float) -> None:
    """A probe of slow steps is cut short, so that it tells little of how long a proof is."""
    bench = calm(slower=lambda plan: step_s / 0.1)
    bench.prepare_s = 0.01
    loop = Loop(only(bench, bench.space.baseline, at(bench, 32)))
    assert loop.runner.ledger.probe_s() == 0.0
    for plan in (bench.space.baseline, at(bench, 32)):
        loop.consider(plan)
    slowest_s = bench.step_time_s(at(bench, 32))
    slowest = loop.runner.record[at(bench, 32).key].outcome.measurement
    assert slowest is not None
    assert loop.runner.ledger.proof_s(slowest) >= 9 * slowest_s


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
@pytest.mark.parametrize(
    ("status", "error"), [(Status.OUT_OF_MEMORY, "NothingFits"), (Status.CRASHED, "WorkloadError")]
)
def test_where_no_plan_survives_the_final_the_measured_baseline_is_kept_and_the_reason_said(
    purpose: Purpose, status: Status, error: str
) -> None:
    bench = calm()
    for plan in (bench.space.baseline, at(bench, 32)):
        bench.faults[plan.key] = during(purpose, status, "failed late")
    for size in bench.space.sizes[:-2]:
        bench.faults.setdefault(at(bench, size).key, always(Status.OUT_OF_MEMORY))
    findings = run(only(bench, bench.space.baseline, at(bench, 32)))
    assert findings.plan == bench.space.baseline
    assert findings.stopped.startswith(f"{error}: ")
    assert "failed late" in findings.stopped
    assert any("failed late" in caveat for caveat in findings.caveats)


def test_a_failed_block_drops_the_plan() -> None:
    bench, log = calm(), MemoryLog()
    best, second = at(bench, 32, precision="bf16"), at(bench, 32, precision="tf32")
    bench.faults[best.key] = during(Purpose.BLOCK, Status.OUT_OF_MEMORY, "no memory in the block")
    findings = run(only(bench, bench.space.baseline, best, second, log=log))
    assert findings.plan == second
    assert any(t.purpose is Purpose.BLOCK and t.plan == best for t in log.finished)
    assert "no memory in the block" in next(c for c in findings.alternatives if c.plan == best).note


def test_what_was_estimated_before_a_plan_ran_is_kept() -> None:
    bench = calm()
    told = Fixed(Estimate(value_bytes=123 * MIB, lower_bytes=120 * MIB, upper_bytes=130 * MIB), lambda plan: True)
    findings = run(tuning_of(bench, estimators=[told]))
    assert findings.estimate is not None
    assert findings.estimate.value_bytes == 123 * MIB


def test_when_no_plan_can_be_proven_a_smaller_one_is_tried() -> None:
    bench = calm()
    only_one = bench.space.baseline
    bench.faults[only_one.key] = during(Purpose.PROOF, Status.OVER_BUDGET, "2 allocator retries")
    findings = run(only(bench, only_one))
    assert findings.plan.combination == only_one.combination
    assert 2 * findings.plan.micro_batch_size <= only_one.micro_batch_size
    assert (findings.plan, Purpose.PROOF) in bench.runs
    assert any("its proof failed (2 allocator retries)" in caveat for caveat in findings.caveats)


def test_a_plan_that_joins_a_race_is_announced_and_the_baseline_that_is_slower_is_not_counted() -> None:
    bench, events = calm(), list[Event]()
    best, second = at(bench, 32, precision="bf16"), at(bench, 16, precision="bf16")
    tuning = only(bench, bench.space.baseline, best, second, listen=events.append)
    normal = bench.evaluate(second, Purpose.PROBE).measurement
    assert normal is not None
    times = tuple(step_s / 4 for step_s in normal.step_times_s)
    quick = Outcome(status=Status.MEASURED, measurement=normal.model_copy(update={"step_times_s": times}))
    bench.faults[second.key] = lambda purpose: quick if purpose is Purpose.PROBE else None
    findings, _, race = followed(tuning)
    assert findings.plan == best
    assert list(race.joined) == [best.key]
    texts = [event.text for event in events if event.phase == "race" and event.kind in ("stage", "race")]
    assert texts[0] == "racing 2 plans in interleaved blocks"
    assert f"another plan joins the race: {describe_plan(best, bench.space.baseline)}" in texts
    assert texts[-1].endswith(": 1 plan left")  # of three that ran: one left, and the baseline never leaves


def test_a_plan_that_recomputes_less_than_the_leader_races_however_slow_its_probe_was() -> None:
    trade = Trade(technique="checkpointing", counted="blocks to checkpoint")
    blocks = Knob(name="blocks", values=(0, 2, 4), default=0, trades_memory=trade)
    effects = {
        ("precision", "bf16"): Effect(compute=0.5),
        ("blocks", 2): Effect(compute=1.1),
        ("blocks", 4): Effect(compute=1.2),
    }
    bench = small_bench(space=space_of((PRECISION, blocks), (8, 32), 8), effects=effects)
    best, less, more = (at(bench, 32, precision="bf16", blocks=count) for count in (0, 2, 4))
    normal = bench.evaluate(best, Purpose.PROBE).measurement
    assert normal is not None
    times = tuple(step_s * 1.6 for step_s in normal.step_times_s)
    slow = Outcome(status=Status.MEASURED, measurement=normal.model_copy(update={"step_times_s": times}))
    bench.faults[best.key] = lambda purpose: slow if purpose is Purpose.PROBE else None
    tuning = only(bench, bench.space.baseline, best, less, more)
    findings, _, race = followed(tuning)
    assert list(race.joined) == [best.key]
    assert findings.plan == best
