"""Plans as numbers."""

import math

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.feasibility.plan_features import PlanList, expected_of, typed
from tests.fakes import small_bench, space_of
from tests.feasibility.points import points_of

PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32", growth=(1.0, 0.5))
BLOCKS = Knob(name="blocks", values=(0, 4), default=0, expected=(1.0, 0.8))
KNOBS = (PRECISION, BLOCKS)


def plan(size: int, precision: str = "fp32", blocks: int = 0) -> Plan:
    return Plan(values={"micro_batch_size": size, "precision": precision, "blocks": blocks})


def test_plans_are_numbered_by_value_size_and_combination() -> None:
    points = points_of(KNOBS, [plan(8), plan(16, "bf16"), plan(4, blocks=4), plan(32, "bf16")], 8)
    assert points.values.tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]
    assert points.octaves.tolist() == [0, 1, -1, 2]
    assert points.combinations.tolist() == [0, 1, 2, 1]
    assert points.of([3, 0]).values.tolist() == [[1, 0], [0, 0]]


def test_sizes_close_to_others_are_less_isolated() -> None:
    points = points_of(KNOBS, [plan(8), plan(16), plan(64), plan(65), plan(64, "bf16")], 8)
    close = math.log2(65 / 64) / 0.25
    assert points.isolation == pytest.approx([1, 1, close, close, close])


def test_expected_effects_are_those_of_the_knobs_that_have_any() -> None:
    points = points_of(KNOBS, [plan(8), plan(8, "bf16", 4)], 8)
    growth, covered = expected_of(KNOBS, points, "growth")
    assert growth == pytest.approx([0, math.log(0.5)])
    assert covered == [True, False]
    speed, covered = expected_of(KNOBS, points, "expected")
    assert speed == pytest.approx([0, math.log(0.8)])
    assert covered == [False, True]


def test_equal_values_of_other_types_are_different() -> None:
    assert typed(1) != typed(True)
    switch = Knob(name="switch", values=(False, True), default=False)
    points = points_of((switch,), [Plan(values={"micro_batch_size": 1, "switch": True})], 1)
    assert points.values.tolist() == [[1]]


def test_each_plan_of_a_space_has_its_place_the_baseline_first() -> None:
    space = small_bench().space
    listed = PlanList(space)
    assert list(listed.plans) == list(space.plans())
    assert listed.place(space.baseline) == 0
    assert [listed.place(each) for each in listed.plans] == list(range(len(listed.plans)))
    assert listed.place(space.baseline.replace(micro_batch_size=7)) is None


def test_the_rest_of_a_huge_space_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.feasibility.plan_features.MAX_PLANS", 3)
    space = space_of(KNOBS, (4, 8), 8)
    listed = PlanList(space)
    assert len(listed.plans) == len(listed.points.octaves) == 3
    assert np.sum([listed.place(each) is None for each in space.plans()]) == 5


def test_values_that_do_not_fit_the_number_of_micro_batches_are_barred() -> None:
    sync = Knob(name="sync", values=(True, False), default=True, accumulated=(False,))
    early = Knob(name="early", values=(False, True), default=False, one_pass=(True,))
    space = space_of((sync, early), (4, 8, 16), 8, global_batch_size=16)
    listed = PlanList(space)
    assert [space.violation(each) is not None for each in listed.plans] == listed.barred().tolist()
    assert listed.barred().sum() == 2 + 4  # of each sync=False the whole batch, of each early=True the others
