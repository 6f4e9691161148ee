"""Who goes into the final and who wins it."""

import math
from typing import Any

import pytest

from autofit.core.answer import Ratio
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.choice import choose, finalists, lightest, measurement_of, quotient, ranked, ties

OWN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, "precision": "float32", "format": "plain"})
OBJECTIVE = Objective()


def measured(speed: float, peak: int = 1000, spread: float = 0.0, **changes: Any) -> Trial:
    """Returns a trial of OWN with changes, at `speed` samples per second."""
    times = tuple(8 / speed * (1 + spread * sign) for sign in (-1, -1, 0, 1, 1))
    memory = Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="test")
    measurement = Measurement(step_times_s=times, samples_per_step=8, memory=memory)
    outcome = Outcome(status=Status.MEASURED, measurement=measurement)
    return Trial(number=0, plan=OWN.replace(**changes), outcome=outcome)


def by_probe(a: Trial, b: Trial) -> Ratio:
    value = OBJECTIVE.score(measurement_of(a)) / OBJECTIVE.score(measurement_of(b))
    return Ratio(value=value, low=value * 0.99, high=value * 1.01, pairs=8)


def test_finalists_are_those_the_noise_may_excuse_and_the_baseline() -> None:
    own, best = measured(100), measured(200, precision="bf16")
    near, far = measured(195, precision="tf32"), measured(140, format="last")
    assert finalists([own, far, near, best], OWN, OBJECTIVE) == [best, near, own]


def test_finalists_are_at_most_four_and_the_baseline() -> None:
    trials = [measured(200 + n, micro_batch_size=16 + n) for n in range(8)]
    chosen = finalists([*trials, measured(50)], OWN, OBJECTIVE)
    # The last of them is the one with the smallest batch among those within the tie margin of the fastest.
    assert [OBJECTIVE.score(measurement_of(t)) for t in chosen] == pytest.approx([207, 206, 205, 203, 50])


def test_a_noisy_probe_stays_in_the_final() -> None:
    best, noisy = measured(200, precision="bf16"), measured(140, spread=0.4, precision="tf32")
    assert noisy in finalists([best, noisy], OWN, OBJECTIVE)
    assert measured(140, precision="tf32") not in finalists([best, measured(140, precision="tf32")], OWN, OBJECTIVE)


def test_the_fastest_three_race_unless_one_is_far_behind() -> None:
    trials = [measured(200 - 15 * n, micro_batch_size=16 + n) for n in range(5)]
    assert finalists(trials, OWN, OBJECTIVE) == trials[:3]
    assert finalists([*trials[:2], measured(120, precision="tf32")], OWN, OBJECTIVE) == trials[:2]


def test_only_measured_plans_are_ranked_and_the_latest_trial_counts() -> None:
    over = Trial(number=1, plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="x"))
    first, second = measured(100, precision="tf32"), measured(120, precision="tf32")
    assert ranked([first, over, second], OBJECTIVE) == [second]


def test_the_fastest_wins_beyond_the_tie_margin() -> None:
    own, light, fast = measured(100, 100), measured(150, 100, precision="tf32"), measured(200, 9000, precision="bf16")
    assert choose([own, light, fast], OWN, OBJECTIVE, by_probe) is fast


def test_a_tie_goes_to_less_memory_then_to_fewer_changes() -> None:
    own = measured(100, 2000)
    fast, light = measured(200, 2000, precision="bf16"), measured(198, 1500, precision="tf32")
    assert choose([own, fast, light], OWN, OBJECTIVE, by_probe) is light
    many, few = measured(201, 1500, precision="bf16", format="last"), measured(199, 1505, precision="bf16")
    assert choose([own, many, few], OWN, OBJECTIVE, by_probe) is few


def test_a_tie_with_the_baseline_keeps_the_baseline_unless_the_other_saves_memory() -> None:
    other = measured(101, 2000, precision="tf32")
    assert choose([other, own := measured(100, 2000)], OWN, OBJECTIVE, by_probe) is own
    lean = measured(101, 1000, precision="tf32")
    assert choose([lean, measured(100, 2000)], OWN, OBJECTIVE, by_probe) is lean


@pytest.mark.parametrize(
    ("gain", "noise", "keeps"),
    [
        (1.03, 0.01, False),
        (1.01, 0.002, True),  # surely faster, but not worth a change
        (1.01, 0.02, True),
        (1.01, 0.2, True),  # measured badly: it may well be 10 % faster, and as well be slower
        (1.05, 0.06, False),  # within the noise, but the best guess
        (0.97, 0.02, True),
    ],
)
def test_the_own_setting_stays_where_the_best_is_hardly_ahead(gain: float, noise: float, keeps: bool) -> None:
    own, other = measured(100, 2000), measured(100 * gain, 2000, precision="tf32")

    def raced(a: Trial, b: Trial) -> Ratio:
        value = by_probe(a, b).value
        return Ratio(value=value, low=value * math.exp(-noise), high=value * math.exp(noise), pairs=20)

    assert choose([own, other], OWN, OBJECTIVE, raced) is (own if keeps else other)


def test_nothing_slower_than_the_baseline_beyond_noise_is_chosen() -> None:
    # The leader ties with a lean plan, which is slower than the baseline: a chain of ties must not lead below it.
    leader, own, lean = measured(101.5, 3000, precision="bf16"), measured(101, 2000), measured(99.8, 10, format="last")

    def sharp(a: Trial, b: Trial) -> Ratio:
        value = by_probe(a, b).value
        return Ratio(value=value, low=value * 0.999, high=value * 1.001, pairs=40)

    assert choose([leader, own, lean], OWN, OBJECTIVE, sharp) is own


def test_without_a_baseline_the_rules_still_decide() -> None:
    fast, light = measured(200, 2000, precision="bf16"), measured(199, 1000, precision="tf32")
    assert choose([fast, light], OWN, OBJECTIVE, by_probe) is light


@pytest.mark.parametrize(
    ("value", "low", "high", "tie"),
    [
        (1.01, 0.995, 1.025, True),
        (1.01, 1.005, 1.015, False),  # surely slower
        (1.019, 0.985, 1.054, False),  # it may well be 5 % slower
        (1.0, 0.94, 1.06, True),
        (1.0, 0.88, 1.13, False),  # measured badly: a plan that is 10 % slower may look so
        (1.03, 0.99, 1.07, False),
        (0.98, 0.94, 1.02, True),  # the other is the faster guess
    ],
)
def test_what_is_a_tie(value: float, low: float, high: float, tie: bool) -> None:
    assert ties(Ratio(value=value, low=low, high=high), 0.02) is tie


def test_peaks_within_one_percent_are_equal() -> None:
    changed, own = measured(100, 1000, precision="bf16"), measured(100, 1009)
    assert lightest([changed, own], OWN) is own
    assert lightest([changed, measured(100, 1011)], OWN) is changed


def test_of_plans_that_change_equally_much_the_faster_one_is_preferred() -> None:
    own, slow, fast = measured(80), measured(100, optimizer="a"), measured(101, optimizer="b")
    for candidates in ([own, slow, fast], [own, fast, slow]):
        assert choose(candidates, OWN, OBJECTIVE, by_probe) is fast


def test_the_quotient_of_two_probes_is_wider_than_their_steps_say() -> None:
    ratio = quotient(measurement_of(measured(200)), measurement_of(measured(100)), OBJECTIVE)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low < 1.9
    assert ratio.high > 2.1
    assert ratio.pairs == 0


def test_a_trial_without_measurement_cannot_be_chosen() -> None:
    trial = Trial(number=3, plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="x"))
    with pytest.raises(ValueError, match="trial 3 has no measurement"):
        measurement_of(trial)
