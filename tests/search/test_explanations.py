"""Caveats of a search: what its gain rests on."""

import pytest

from autofit.core.budget import Budget
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.common_scale import CommonScale
from autofit.search.explanations import Explanations
from autofit.search.loop import SearchEnd
from autofit.search.race import Race
from autofit.search.request import Event
from autofit.search.search import run
from autofit.search.trial_runner import TrialRunner
from tests.fakes import (
    FakeBench,
    always,
    small_bench,
    tuning_of,
)
from tests.search.listed import at, calm, only


def faster_in_bf16(plan: Plan) -> float:
    return 0.94 if plan.values["precision"] == "bf16" else 1.0


def test_a_gain_within_the_noise_is_said_to_be_one() -> None:
    said = []
    for seed in range(8):
        bench = calm(seed=seed, noise=0.25, drift=0.06, effects={}, slower=faster_in_bf16)
        findings = run(only(bench, bench.space.baseline, at(bench, 8, precision="bf16"), seed=seed))
        gain, caveats = findings.gain, [caveat for caveat in findings.caveats if "is within the noise" in caveat]
        assert gain is not None
        within = findings.plan != bench.space.baseline and gain.low <= 1 < gain.value
        assert len(caveats) == within
        assert all(str(gain) in caveat for caveat in caveats)
        said.append(within)
    assert {True, False} == set(said)


def test_without_time_for_a_race_the_gain_is_said_to_rest_on_probes() -> None:
    bench = small_bench(prepare_s=5.0)
    findings = run(tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, time_s=42.0)))
    if findings.plan != bench.space.baseline:
        assert findings.gain is not None
        assert findings.gain.pairs == 0 or findings.gain.pairs < 4
    assert any("undecided" in c or "no time for a race" in c for c in findings.caveats)


def slowed(bench: FakeBench, plan: Plan, by: float) -> None:
    """Makes the proofs of a plan run so many times slower than its other runs."""
    probe = bench.evaluate(plan, Purpose.PROBE).measurement
    assert probe is not None
    times_s = tuple(by * time_s for time_s in probe.step_times_s)
    proof = probe.model_copy(update={"step_times_s": times_s, "warmup_times_s": times_s[:1]})
    bench.faults[plan.key] = {Purpose.PROOF: Outcome(status=Status.MEASURED, measurement=proof)}.get


@pytest.mark.parametrize(("by", "time_s", "known"), [(4.0, 6.5, False), (1.2, 6.5, True), (4.0, 4000.0, True)])
def test_where_the_proof_contradicts_the_probe_there_is_no_ratio(by: float, time_s: float, known: bool) -> None:
    """Blocks of a race ran beside those of the baseline, so their ratio stands, with the doubt beside it."""
    bench = calm(effects={}, slower=lambda plan: 0.2 if plan.values["precision"] == "bf16" else 1.0)
    fast, events = at(bench, 8, precision="bf16"), list[Event]()
    slowed(bench, fast, by)
    budget = Budget(memory_bytes=bench.budget_bytes, time_s=time_s)
    findings = run(only(bench, bench.space.baseline, fast, budget=budget, listen=events.append))
    assert findings.plan == fast
    assert (findings.gain is not None) is known
    assert any("the proof ran at " in caveat for caveat in findings.caveats[:1]) is (by > 2)
    assert known or "no gain is reported" in findings.caveats[0]
    assert known or not any("4.9" in event.text for event in events)
    assert known or not any("the gain rests on" in caveat for caveat in findings.caveats)


def test_a_long_message_of_the_users_code_is_cut_in_what_becomes_the_headline() -> None:
    bench = small_bench()
    message = f"ValueError: {'Z' * 300} (train.py:10 in forward)"
    for plan in bench.space.plans():
        if plan != bench.space.baseline:
            bench.faults[plan.key] = always(Status.USER_ERROR, message)
    untried = run(tuning_of(bench)).untried
    assert untried.startswith("No other plan ran: user error, ValueError: ZZZ")
    assert untried.endswith("ZZZ (train.py:10 in forward)")
    assert len(untried) < 160


def test_the_one_plan_that_was_tried_and_failed_is_named() -> None:
    bench = calm(effects={}, slower=lambda plan: 1.0)
    fast = at(bench, 8, precision="bf16")
    bench.faults[fast.key] = always(Status.TIMED_OUT, "the time ran out")
    untried = run(only(bench, bench.space.baseline, fast)).untried
    assert untried.endswith(" was tried: timed out, the time ran out")
    assert "precision=bf16" in untried


def test_what_new_shapes_cost_is_said_of_the_plan_that_pays_most() -> None:
    bench, low = calm(), "precision=bf16"
    plans = [bench.space.baseline, at(bench, 8, precision="bf16")]
    for plan, share in zip(plans, (0.25, 0.75), strict=True):
        probe = bench.evaluate(plan, Purpose.PROBE).measurement
        assert probe is not None
        new_s = probe.step_time_s * share / (1 - share)
        outcome = Outcome(status=Status.MEASURED, measurement=probe.model_copy(update={"new_shape_s": new_s}))
        bench.faults[plan.key] = {Purpose.PROBE: outcome}.get
    findings = run(only(bench, *plans))
    assert findings.plan == bench.space.baseline
    (said,) = [caveat for caveat in findings.caveats if "new shape" in caveat]
    assert f"up to 75% of a step (micro batch 8, {low}), 25% with the recommended plan" in said
    assert not any("new shape" in caveat for caveat in run(only(calm(), *plans)).caveats)


def explained(bench: FakeBench, *rates: float, rounds: int = 0) -> tuple[Explanations, list[Trial]]:
    """Returns what is said of plans with these throughputs, after a race of so many rounds. First: the baseline."""
    values = ("fp32", "bf16", "tf32")
    memory = Memory(allocated_bytes=1000, judged_bytes=1000, judged_by="test")
    trials = [
        Trial(
            number=0,
            plan=at(bench, 8, precision=value),
            outcome=Outcome(
                status=Status.MEASURED,
                measurement=Measurement(step_times_s=(8 / rate,) * 3, samples_per_step=8, memory=memory),
            ),
        )
        for value, rate in zip(values, rates, strict=False)
    ]
    runner = TrialRunner(tuning_of(bench))
    scale = CommonScale(Objective(), trials)
    race = Race(tuple(trial.plan.key for trial in trials))
    for number in range(rounds):
        shaken = [rate * (1 + 0.004 * ((number + place) % 3)) for place, rate in enumerate(rates)]
        race.add({name: shaken[place] for place, name in enumerate(race.names) if name in race.running})
    scale.race = race if rounds else None
    return Explanations(runner, trials, trials[0], scale, {}), trials


def test_a_tie_is_not_decided_by_speed_against_the_faster_plan() -> None:
    explanations, (_, slower, faster) = explained(calm(), 100.0, 200.0, 200.2, rounds=5)
    assert explanations.why_not(faster, slower).startswith("a tie: 1.00")
    assert explanations.why_not(slower, faster).startswith("a tie, decided by speed: 1.00")


def test_a_loss_beyond_the_noise_is_not_said_to_be_within_it() -> None:
    for rate, within in ((37.0, False), (97.0, True)):
        explanations, (_, winner) = explained(calm(), 100.0, rate)
        (said,) = [text for text in explanations.caveats(winner, SearchEnd("the time is over")) if "separate" in text]
        assert ("within their noise" in said) is within
