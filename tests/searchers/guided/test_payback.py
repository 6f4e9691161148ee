"""Which values cannot earn their warm-up, and what a warm-up adds to the time of a probe."""

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.space import Basis
from autofit.searchers.guided.stopping import OVERDUE_RATIO, USUAL_RATIO, Payback
from tests.feasibility.points import points_of

COMPILE = Knob(
    name="compile",
    values=("off", "all", "graphs"),
    default="off",
    warm_up_s=(0.0, 3.0, 3.0),
    ceiling=(1.0, 2.0, 5.0),
)
FORMAT = Knob(name="format", values=("default", "channels_last"), default="default")
KNOBS = (FORMAT, COMPILE)
PLANS = [
    Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "format": form, "compile": value})
    for form in FORMAT.values for value in COMPILE.values for size in (8, 16)
]  # fmt: skip
POINTS = points_of(KNOBS, PLANS, 8)


def measured(step_s: float, startup_s: float | None = None) -> Measurement:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="")
    return Measurement(step_times_s=(step_s,), samples_per_step=8, memory=memory, startup_s=startup_s)


def payback(steps: int | None) -> Payback:
    return Payback(KNOBS, POINTS, Objective(planned_samples=None if steps is None else 8 * steps))


def excluded(steps: int | None, step_s: float) -> set[str]:
    found = payback(steps).never({0: measured(step_s)})
    return {str(PLANS[place].values["compile"]) for each in found for place in np.flatnonzero(each.mask)}


@pytest.mark.parametrize(
    ("steps", "step_s", "expected"),
    [
        (10_000, 0.1, set()),  # 1,000 s of training
        (10_000, 0.0013, set()),  # 13 s: half is 6.5 s, more than twice 3 s
        (10_000, 0.0011, {"all"}),  # 11 s: graphs may save 8.8 s
        (10_000, 0.0005, {"all", "graphs"}),
        (20, 0.1, {"all", "graphs"}),  # a short training
        (None, 0.0001, set()),  # warm-up is ignored
    ],
)
def test_values_that_cannot_pay_are_excluded(steps: int | None, step_s: float, expected: set[str]) -> None:
    assert excluded(steps, step_s) == expected


def test_the_reason_has_the_numbers() -> None:
    (one,) = payback(10_000).never({0: measured(0.0011)})
    assert one.reason == (
        "compile=all cannot pay: even 2 times as fast, it would save 5.5 s of the 11 s of the planned training, and "
        "its warm-up costs at least 3 s, in the search and again in the training"
    )
    assert one.basis is Basis.ASSUMED


def test_without_a_measured_baseline_nothing_is_excluded() -> None:
    assert payback(1).never({3: measured(0.1)}) == []
    assert not payback(1).costs({3: measured(0.1)}).any()
    assert not payback(None).costs({0: measured(0.1)}).any()


def test_a_probe_takes_the_warm_up_of_its_values_longer() -> None:
    before = payback(None).warm_ups_s({})
    assert {(str(plan.values["compile"]), float(s)) for plan, s in zip(PLANS, before, strict=True)} == {
        ("off", 0.0),
        ("all", 3.0 * USUAL_RATIO),
        ("graphs", 3.0 * USUAL_RATIO),
    }
    of_all = next(place for place, plan in enumerate(PLANS) if plan.values["compile"] == "all")
    after = payback(None).warm_ups_s({of_all: measured(0.1, 12.0)})
    assert {str(plan.values["compile"]): float(s) for plan, s in zip(PLANS, after, strict=True)} == {
        "off": 0.0,
        "all": 12.0,
        "graphs": 3.0 * USUAL_RATIO,
    }


def test_the_cost_is_a_share_of_the_planned_training() -> None:
    costs = payback(1000).costs({0: measured(0.1)})  # 100 s, of which 15 s are paid twice
    assert {str(plan.values["compile"]): round(float(c), 9) for plan, c in zip(PLANS, costs, strict=True)} == {
        "off": 0.0,
        "all": 0.3,
        "graphs": 0.3,
    }


def test_what_was_given_up_is_not_tried_again_with_less_time() -> None:
    knob = COMPILE.model_copy(update={"warm_up_s": (0.0, 3.0, 0.6)})
    points = points_of((FORMAT, knob), PLANS, 8)
    known = Payback((FORMAT, knob), points, Objective())
    compiled = [place for place, plan in enumerate(PLANS) if plan.values["compile"] == "all"]
    graphs = [place for place, plan in enumerate(PLANS) if plan.values["compile"] == "graphs"]
    seconds = known.warm_ups_s({}, {graphs[0]: 20.0})
    assert set(seconds[graphs]) == {OVERDUE_RATIO * 20.0}
    assert set(seconds[compiled]) == {OVERDUE_RATIO * 20.0 * 3.0 / 0.6}
    seconds = known.warm_ups_s({}, {compiled[0]: 20.0})
    assert set(seconds[graphs]) == {OVERDUE_RATIO * 20.0 * 0.6 / 3.0}  # what takes less may still be tried
    measured_s = known.warm_ups_s({compiled[0]: measured(0.1, startup_s=7.0)}, {compiled[1]: 20.0})
    assert set(measured_s[compiled]) == {7.0}
