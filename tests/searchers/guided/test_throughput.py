"""Throughput: what is believed of the speed of plans, over all settings of the model that explain what was seen."""

import math
from statistics import fmean

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.plan import Plan
from autofit.searchers.guided import throughput
from autofit.searchers.guided.throughput import Throughput
from tests.feasibility.points import points_of

PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32")
BLOCKS = Knob(name="checkpointed_blocks", values=(0, 4), default=0, expected=(1.0, 0.8))
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
OWN = 8
NOISE = math.sqrt(fmean(noise**2 for noise in throughput.NOISES))
"""Deviation of one probe while nothing tells how noisy the machine is."""


def plan(size: int, precision: str = "fp32", blocks: int = 0) -> Plan:
    return Plan(values={"micro_batch_size": size, "precision": precision, "checkpointed_blocks": blocks})


PLANS = [plan(size, precision, blocks) for precision in ("fp32", "bf16") for blocks in (0, 4) for size in SIZES]


def believed(
    told: dict[Plan, float], step_times_s: tuple[float, ...] = (0.1, 0.1, 0.1)
) -> dict[Plan, tuple[float, float]]:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    measurement = Measurement(step_times_s=step_times_s, samples_per_step=OWN, memory=memory)
    scores = {PLANS.index(each): score for each, score in told.items()}
    belief = Throughput((PRECISION, BLOCKS), points_of((PRECISION, BLOCKS), PLANS, OWN)).believe(
        scores, dict.fromkeys(scores, measurement)
    )
    return {each: (belief.mean[i], belief.deviation[i]) for i, each in enumerate(PLANS)}


def law(size: int, overhead: float) -> float:
    return 100 * size / (size + overhead)


def test_what_ran_is_believed() -> None:
    found = believed({plan(8): 100.0, plan(16): 130.0, plan(8, "bf16"): 180.0})
    for each, score in ((plan(8), 100.0), (plan(16), 130.0), (plan(8, "bf16"), 180.0)):
        assert found[each][0] == pytest.approx(math.log(score), abs=0.05)
        assert found[each][1] < 1.1 * NOISE


def test_a_noisy_machine_shows_in_plans_that_should_agree_and_then_a_probe_is_not_taken_at_its_word() -> None:
    places = [(size, precision) for precision in ("fp32", "bf16") for size in (2, 4, 8, 16, 32)]

    def probed(noise: float) -> tuple[float, float]:
        told = {
            plan(size, precision): law(size, 1.0) * (1.8 if precision == "bf16" else 1.0) * math.exp(noise * (-1) ** at)
            for at, (size, precision) in enumerate(places)
        }
        found = believed(told)
        off = [abs(found[each][0] - math.log(score)) for each, score in told.items()]
        return sum(off) / len(off), max(found[each][1] for each in told)

    calm, noisy = probed(0.0), probed(0.1)
    assert calm[0] < 0.005
    assert calm[1] < 0.03
    assert noisy[0] > 0.03
    assert noisy[1] > 1.5 * calm[1]


def test_nothing_that_may_happen_at_a_large_size_is_ruled_out_by_one_small_probe() -> None:
    found = believed({plan(8): 100.0})
    deviations = [found[plan(size)][1] for size in (8, 16, 64)]
    assert deviations[0] < 1.1 * NOISE < deviations[1] < deviations[2]
    assert deviations[2] > 0.15  # the fixed part of a step may be anything, so more than the curve alone


@pytest.mark.parametrize("overhead", [0.5, 16.0])
def test_the_fixed_part_of_a_step_is_learned_from_sizes(overhead: float) -> None:
    found = believed({plan(size): law(size, overhead) for size in (4, 8, 16, 32)})
    assert found[plan(128)][0] == pytest.approx(math.log(law(128, overhead)), abs=0.08)
    gain = found[plan(128)][0] - found[plan(32)][0]
    assert (gain > 0.2) == (overhead > 10)


def test_a_mean_over_settings_is_between_them_and_less_sure_than_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {plan(8): 100.0, plan(8, "bf16"): 96.0, plan(4): 90.0}
    whole = believed(told)
    alone = []
    for overhead in throughput.OVERHEADS:
        monkeypatch.setattr(throughput, "OVERHEADS", np.array([overhead]))
        alone.append(believed(told))
    at = plan(64, "bf16")
    assert min(one[at][0] for one in alone) < whole[at][0] < max(one[at][0] for one in alone)
    assert whole[at][1] > min(one[at][1] for one in alone)


def test_noisy_steps_are_believed_less() -> None:
    told = {plan(8): 100.0, plan(8, "bf16"): 180.0}
    calm, noisy = believed(told), believed(told, (0.1, 0.2, 0.05, 0.15))
    assert noisy[plan(8)][1] > 2 * calm[plan(8)][1]


def test_what_theory_says_of_a_knob_is_expected() -> None:
    found = believed({plan(8): 100.0})
    assert found[plan(8, blocks=4)][0] == pytest.approx(math.log(80.0), abs=0.01)
    assert found[plan(8, blocks=4)][1] < found[plan(8, "bf16")][1]


def spread_of(knob: Knob) -> tuple[float, float]:
    """Returns the deviation of the ratio of the knob's second value to its default, and the correlation with its third.

    The default ran.
    """
    plans = [Plan(values={"micro_batch_size": OWN, knob.name: value}) for value in knob.values]
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    ran = Measurement(step_times_s=(0.1, 0.1), samples_per_step=OWN, memory=memory)
    model = Throughput((knob,), points_of((knob,), plans, OWN))
    before = model.believe({0: 100.0}, {0: ran})
    after = model.believe({0: 100.0, 1: 100.0 * math.exp(before.mean[1] - before.mean[0] + 0.5)}, {0: ran, 1: ran})
    return float(before.deviation[1]), float(after.mean[2] - before.mean[2]) / 0.5


def test_a_value_that_may_do_much_better_than_expected_is_less_sure_and_informs_its_siblings() -> None:
    names = ("off", "default", "blocks")
    sure = Knob(name="compile", values=names, default="off", expected=(1.0, 1.3, 1.3))
    open_ended = sure.model_copy(update={"ceiling": (1.0, 2.5, 2.5)})
    (known, alike), (unknown, more_alike) = spread_of(sure), spread_of(open_ended)
    assert unknown > 1.3 * known
    assert more_alike > alike + 0.1
