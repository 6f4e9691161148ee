"""What is said where the proof of a plan contradicts the throughput that is shown for it."""

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.common_scale import CommonScale
from autofit.search.race import MIN_ROUNDS, Race


def measured(samples_per_s: float, warmup_steps: int = 1) -> Measurement:
    memory, times_s = Memory(allocated_bytes=1000, judged_bytes=1000, judged_by="test"), (40 / samples_per_s,) * 3
    return Measurement(step_times_s=times_s, warmup_times_s=times_s[:warmup_steps], samples_per_step=40, memory=memory)


def probed(*rates: float) -> list[Trial]:
    """Returns a measured trial of another plan for each throughput."""
    plans = [Plan(values={"micro_batch_size": 40, "accumulation_steps": 1, "kind": kind}) for kind in range(len(rates))]
    outcomes = [Outcome(status=Status.MEASURED, measurement=measured(rate)) for rate in rates]
    return [Trial(number=0, plan=plan, outcome=outcome) for plan, outcome in zip(plans, outcomes, strict=True)]


def raced(trials: list[Trial], *rates: float) -> CommonScale:
    """Returns the scale of these trials after a race in which the first ones had these throughputs."""
    scale, names = CommonScale(Objective(), trials), tuple(t.plan.key for t in trials[: len(rates)])
    race = scale.race = Race(names, names[0])
    for number in range(6):
        race.add({name: rate * (1 - 0.001 * (number % 3)) for name, rate in zip(names, rates, strict=True)})
    return scale


@pytest.mark.parametrize(("proven", "doubted"), [(787.0, True), (1900.0, False), (2666.0, False), (4100.0, True)])
def test_a_proof_that_contradicts_the_figure_shown_is_reported(proven: float, doubted: bool) -> None:
    """Seen on a shared machine: a plan was shown with 2,666 samples/s whose proof ran at 787, without a word."""
    plan = Plan(values={"micro_batch_size": 40, "accumulation_steps": 1})
    trial = Trial(number=0, plan=plan, outcome=Outcome(status=Status.MEASURED, measurement=measured(2666.0)))
    doubt = CommonScale(Objective(), [trial]).doubt_of_proof(trial, measured(proven))
    assert bool(doubt) is doubted
    if doubted:
        assert f"{proven:,.0f} samples/s, but 2,666 are shown: probably something else used" in doubt
        assert "Tune again" in doubt
    on_worst_batch = measured(proven, warmup_steps=0)  # metered, and no other steps had time
    assert not CommonScale(Objective(), [trial]).doubt_of_proof(trial, on_worst_batch)


def test_a_plan_that_left_the_race_early_shows_no_more_than_the_plan_it_lost_to() -> None:
    """The baseline was disturbed in the first rounds, when the third plan still ran."""
    baseline, winner, early = trials = probed(100, 100, 100)
    scale = CommonScale(Objective(), trials)
    race = scale.race = Race(tuple(t.plan.key for t in trials), baseline.plan.key)
    for number in range(20):
        slower = 0.001 * (number % 3)
        speeds = dict(zip(race.names, (90, 180, 170) if number < MIN_ROUNDS else (100, 170, 0), strict=True))
        race.add({name: speeds[name] * (1 - slower) for name in race.running})
    assert race.running == [baseline.plan.key, winner.plan.key]
    assert scale.ratio(early, winner).high < 1
    assert scale.ratio(early, baseline).value > scale.ratio(winner, baseline).value  # the figures before the choice
    gain = scale.ratio(winner, baseline)
    scale.anchor(winner)
    assert scale.ratio(winner, baseline) == gain
    assert scale.ratio(early, baseline).value == pytest.approx(gain.value * 170 / 180, rel=1e-3)
    assert scale.ratio(early, baseline).low < scale.ratio(early, baseline).value < scale.ratio(early, baseline).high
    assert scale.rate_per_s(early) == pytest.approx(scale.rate_per_s(winner) * 170 / 180, rel=1e-3)
    assert scale.rate_per_s(baseline) == pytest.approx(scale.rate_per_s(winner) / gain.value, rel=1e-3)


def test_a_plan_that_did_not_race_is_to_the_winner_as_their_probes_are() -> None:
    """The baseline's probe was disturbed: that says nothing about the probes of the other plans."""
    _, winner, other = trials = probed(40.0, 95.0, 94.0)
    scale = raced(trials, 58, 96)
    assert scale.rate_per_s(other) > scale.rate_per_s(winner)  # the figures before the choice
    scale.anchor(winner)
    assert scale.ratio(other, winner).value == pytest.approx(94 / 95, rel=1e-6)
    assert scale.rate_per_s(other) < scale.rate_per_s(winner)


@pytest.mark.parametrize(("speed", "sure"), [(1.0, True), (0.6, False)])
def test_where_the_machine_changed_its_speed_a_plan_that_did_not_race_is_less_sure(speed: float, sure: bool) -> None:
    """Seen on a shared machine: the plan ran after the change, was shown at 0.56x (0.47 to 0.67), and was as fast."""
    baseline, winner, after = trials = probed(100.0, 150.0, 60.0)
    scale = raced(trials, 100 * speed, 150 * speed)
    scale.anchor(winner)
    assert (scale.ratio(after, baseline).high < 1) is sure
    assert scale.ratio(winner, baseline).low > 1.4
