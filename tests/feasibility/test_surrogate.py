"""The surrogate: what was told is believed, what shares a part with it leans towards it, the rest stays unsure."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.feasibility.plan_features import Array, Points
from autofit.feasibility.surrogate import Covariances, Kernel, Scales, Surrogate
from tests.feasibility.points import points_of

PRECISION = Knob(name="precision", values=("fp32", "bf16", "fp16"), default="fp32")
BLOCKS = Knob(name="blocks", values=(0, 2, 4), default=0)
FORMAT = Knob(name="format", values=("default", "channels_last"), default="default")
KNOBS = (PRECISION, BLOCKS, FORMAT)
SCALES = Scales(curve=0.1, knob=0.3, slope=0.05, pair=0.05, alone=0.02)
KERNEL = Kernel(KNOBS, SCALES)


def surrogate(points: Points, told: list[int], kernel: Kernel = KERNEL, **given: float) -> Surrogate:
    return Surrogate(Covariances(kernel, points), told, np.full(len(told), given.pop("noise", 0.01)), 1.0, **given)


def covariances_of(kernel: Kernel, first: Points, second: Points) -> Array:
    """Returns the covariance of every plan in `first` with every plan in `second`, without the level."""
    same = first.combinations[:, None] == second.combinations[None, :]
    total, pairs = kernel.of_values(first.values, second.values)
    curve, slope, alone = kernel.of_sizes(first, second)
    return np.asarray(curve + slope * total + pairs + same * alone, dtype=np.float64)


def plan(size: int = 8, precision: str = "fp32", blocks: int = 0, form: str = "default") -> Plan:
    return Plan(values={"micro_batch_size": size, "precision": precision, "blocks": blocks, "format": form})


def believed(told: dict[Plan, float], asked: Plan, noise: float = 0.01, scales: Scales = SCALES) -> tuple[float, float]:
    points = points_of(KNOBS, [*told, asked], 8)
    model = surrogate(points, list(range(len(told))), Kernel(KNOBS, scales), noise=noise)
    found = model.believe(np.array([list(told.values())]).T)
    return float(found.mean[-1, 0]), float(found.deviation[-1])


def test_what_was_told_is_believed() -> None:
    mean, deviation = believed({plan(): 0.5, plan(precision="bf16"): 1.0}, plan(precision="bf16"))
    assert mean == pytest.approx(1.0, abs=0.02)
    assert deviation < 0.015


def test_a_change_is_taken_to_another_size_and_beside_another_change() -> None:
    told = {plan(): 0.0, plan(precision="bf16"): 0.7, plan(form="channels_last"): 0.2}
    assert believed(told, plan(16, "bf16"))[0] == pytest.approx(0.7, abs=0.15)
    mean, deviation = believed(told, plan(precision="bf16", form="channels_last"))
    assert mean == pytest.approx(0.9, abs=0.15)
    assert deviation < SCALES.knob / 2


def test_a_relative_of_what_was_told_leans_towards_it_and_is_less_sure() -> None:
    told = {plan(): 0.0, plan(precision="bf16"): 0.6}
    mean, deviation = believed(told, plan(precision="fp16"))
    assert 0.15 < mean < 0.6
    assert deviation > believed(told, plan(precision="bf16"))[1] * 3


def test_relatives_lean_towards_each_other_by_their_kinship() -> None:
    told, asked = {plan(): 0.0, plan(precision="bf16"): 0.6}, plan(precision="fp16")
    means = [believed(told, asked, scales=replace(SCALES, kinship=kinship))[0] for kinship in (0.0, 0.2, 0.5)]
    assert abs(means[0]) < 0.05 < means[1] < means[2] - 0.1


def test_half_the_blocks_change_about_half_as_much() -> None:
    told = {plan(): 0.0, plan(blocks=4): -0.3}
    assert believed(told, plan(blocks=2))[0] == pytest.approx(-0.15, abs=0.06)


def test_what_one_size_has_of_its_own_is_taken_to_other_combinations_and_not_to_other_sizes() -> None:
    told = {plan(size): 0.0 for size in (8, 16, 24, 40)} | {plan(24, "bf16"): 0.5, plan(32, "bf16"): 0.7}
    quirky = replace(SCALES, size=0.1)
    odd, even = (believed(told, plan(size), scales=quirky)[0] for size in (32, 36))
    assert odd > 0.1
    assert abs(even) < odd / 2
    assert believed(told, plan(32))[0] < odd / 2  # without it the combination has it of its own


def test_sizes_that_are_close_to_others_have_less_of_their_own() -> None:
    points = points_of(KNOBS, [plan(size) for size in (8, 16, 64, 65)], 8)
    kernel = Kernel(KNOBS, Scales(curve=0, knob=0, slope=0, pair=0, alone=0, size=0.1))
    assert kernel.variances(points)[:2] == pytest.approx(0.01)
    assert kernel.variances(points)[2:] == pytest.approx(0.01 * (math.log2(65 / 64) / 0.25) ** 2)


def test_where_nothing_was_seen_the_usual_sizes_hold() -> None:
    mean, deviation = believed({plan(): 0.0}, plan(form="channels_last"))
    assert mean == pytest.approx(0.0, abs=0.02)
    usual = math.hypot(SCALES.knob, SCALES.alone, SCALES.alone)
    assert deviation == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("scales", [SCALES, replace(SCALES, size=0.1)])
def test_variances_are_the_diagonal_of_the_kernel(scales: Scales) -> None:
    plans = [
        plan(s, str(p), b, str(f)) for s in (2, 8, 64) for p in PRECISION.values for b in (0, 2) for f in FORMAT.values
    ]
    points = points_of(KNOBS, plans, 8)
    kernel = Kernel(KNOBS, scales)
    assert np.allclose(kernel.variances(points), np.diag(covariances_of(kernel, points, points)))


def test_a_knob_of_which_something_is_known_changes_less() -> None:
    points = points_of(KNOBS, [plan(blocks=4)], 8)
    known = Kernel(KNOBS, SCALES, ratios=(1.0, 0.3, 1.0))
    assert known.variances(points)[0] < 0.3 * KERNEL.variances(points)[0]


def test_evidence_is_higher_for_what_fits() -> None:
    plans = [plan(), plan(precision="bf16"), plan(16)]
    model = surrogate(points_of(KNOBS, plans, 8), [0, 1, 2])
    calm, wild = np.array([[0.0, 0.2, 0.05]]).T, np.array([[0.0, 2.0, -1.5]]).T
    assert model.evidence(calm) > model.evidence(wild)


def test_several_versions_of_what_was_told_are_believed_as_each_alone() -> None:
    plans = [plan(), plan(precision="bf16"), plan(16), plan(32, "bf16")]
    model = surrogate(points_of(KNOBS, plans, 8), [0, 1, 2])
    versions = np.array([[0.0, 0.3], [0.2, -0.1], [0.05, 0.7]])
    both = model.believe(versions)
    for number in (0, 1):
        version = versions[:, [number]]
        alone = model.believe(version)
        assert both.mean[:, number] == pytest.approx(alone.mean[:, 0])
        assert both.deviation == pytest.approx(alone.deviation)
        assert model.evidence(versions)[number] == pytest.approx(model.evidence(version)[0])


@pytest.mark.parametrize("block", [1, 12, 10**6])
def test_several_models_believe_as_each_alone_however_many_plans_at_a_time(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("autofit.feasibility.surrogate.BLOCK", block)
    points = points_of(KNOBS, [plan(), plan(precision="bf16"), plan(16), plan(32, "bf16")], 8)
    covariances, told = Covariances(KERNEL, points), [0, 1, 2]
    versions = np.array([[0.0, 0.3], [0.2, -0.1], [0.05, 0.7]])
    noises, amplitudes = np.array([[0.01, 0.02, 0.03], [0.1, 0.2, 0.1]]), np.array([0.5, 2.0])
    models = Surrogate(covariances, told, noises, 1.0, amplitudes)
    for number in (0, 1):
        one = Surrogate(covariances, told, noises[number], 1.0, float(amplitudes[number]))
        assert models.believe(versions).mean[number] == pytest.approx(one.believe(versions).mean)
        assert models.believe(versions).deviation[number] == pytest.approx(one.believe(versions).deviation)
        assert models.evidence(versions)[number] == pytest.approx(one.evidence(versions))


def test_an_amplitude_is_as_if_all_parts_were_so_many_times_as_large() -> None:
    points = points_of(KNOBS, [plan(), plan(precision="bf16"), plan(16), plan(32, "fp16", 4)], 8)
    double = Scales(curve=0.2, knob=0.6, slope=0.1, pair=0.1, alone=0.04)
    values = np.array([[0.0, 0.2, 0.05]]).T
    ours, theirs = surrogate(points, [0, 1, 2], amplitude=2.0), surrogate(points, [0, 1, 2], Kernel(KNOBS, double))
    assert ours.believe(values).mean == pytest.approx(theirs.believe(values).mean)
    assert ours.believe(values).deviation == pytest.approx(theirs.believe(values).deviation)
    assert ours.evidence(values) == pytest.approx(theirs.evidence(values))


def test_plans_asked_for_one_by_one_have_the_covariances_of_the_kernel() -> None:
    points = points_of(KNOBS, [plan(), plan(precision="bf16"), plan(16), plan(32, "fp16", 4)], 8)
    covariances = Covariances(KERNEL, points)
    for places in ([2], [1, 2, 0]):
        expected = covariances_of(KERNEL, points.of(places), points)
        assert covariances.of(places)(slice(None)) == pytest.approx(expected)


def test_a_space_without_knobs_has_a_curve() -> None:
    points = points_of((), [Plan(values={"micro_batch_size": s}) for s in (4, 8)], 4)
    found = surrogate(points, [0], Kernel((), SCALES)).believe(np.array([[1.0]]))
    assert found.mean[1, 0] == pytest.approx(1.0, abs=0.1)
    assert found.deviation[1] > found.deviation[0]
