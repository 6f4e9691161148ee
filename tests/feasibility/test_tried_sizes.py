"""What the sizes of a combination that ran say of its others."""

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.feasibility.peak_model import ABOVE_LINE, BELOW_LINE, BEND, EQUAL_RATIO, MAX_REACH
from scripts.bench.search.replay.table import read_table
from tests.fakes import MIB, small_bench
from tests.feasibility.judge import Judge, at, linear

TABLES = sorted((Path(__file__).parents[1] / "data" / "tables").glob("*.json"))


def test_peaks_of_two_sizes_tell_which_larger_one_fits() -> None:
    bench = linear(budget_bytes=1500 * MIB)
    judge = Judge(bench)
    judge.run(at(bench, 4))
    judge.run(bench.space.baseline)
    sizes = [s for s in bench.space.sizes if s > 8]
    fitting = [s for s in sizes if bench.fits(at(bench, s))]
    chances = [judge.likely(at(bench, s)) for s in sizes]
    assert chances == sorted(chances, reverse=True)
    assert judge.likely(at(bench, fitting[0])) > 0.7
    assert chances[-1] < 0.5


def above_the_line() -> list[float]:
    """Returns how far recorded peaks are above the line through two smaller sizes, as a share of what it adds."""
    peaks: defaultdict[tuple[Path, str], dict[int, int]] = defaultdict(dict)
    for path in TABLES:
        for entry in read_table(path.read_text(encoding="utf-8"), path.name).entries:
            if (measurement := entry.outcome.measurement) is not None:
                peaks[path, entry.plan.combination.key][entry.plan.micro_batch_size] = measurement.memory.judged_bytes
    found = []
    for of_size in peaks.values():
        for first, last in pairwise(sorted(of_size)):
            slope = (of_size[last] - of_size[first]) / (last - first)
            larger = [size for size in of_size if last < size <= MAX_REACH * last]
            if of_size[last] > (1 + EQUAL_RATIO) * of_size[first]:
                found += [(of_size[size] - of_size[last]) / (slope * (size - last)) - 1 for size in larger]
    return found


def test_how_far_peaks_are_from_a_line_is_as_recorded() -> None:
    found = above_the_line()
    assert len(found) > 700
    assert sum(off < -0.01 for off in found) / len(found) == pytest.approx(BELOW_LINE, abs=0.03)
    for room in (0.01, 0.05, 0.1, 0.2, 0.4):
        share = sum(off <= room for off in found) / len(found)
        assert 1 - ABOVE_LINE * math.exp(-room / BEND) == pytest.approx(share, abs=0.035)


def test_a_line_through_two_sizes_says_whether_the_next_fits() -> None:
    beside = {"extra_mib": lambda plan: 500.0}  # what neither stays nor grows: from what stays alone nothing is sure
    free = linear(budget_bytes=100_000 * MIB, **beside)
    peaks = []
    for size in (16, 32):
        measurement = free.evaluate(at(free, size), Purpose.PROBE).measurement
        assert measurement is not None
        peaks.append(measurement.memory.judged_bytes)
    adds = peaks[1] - peaks[0]
    for room, low, high in ((0.2, 0.9, 0.95), (0.02, 0.75, 0.85), (-0.02, 0.0, 0.06)):
        bench = linear(budget_bytes=round(peaks[1] + room * adds), **beside)
        judge = Judge(bench)
        judge.run(at(bench, 8))
        judge.run(at(bench, 16))
        assert low <= judge.likely(at(bench, 32)) <= high


def test_peaks_that_fall_with_the_size_make_no_line() -> None:
    bench = linear(budget_bytes=3000 * MIB, extra_mib=lambda plan: 900.0 if plan.micro_batch_size == 4 else 0.0)
    judge = Judge(bench)
    for size in (4, 8):
        judge.run(at(bench, size))
    assert judge.likely(at(bench, 16)) > 0.5


def test_after_three_out_of_memories_one_refusal_makes_a_size_doubtful() -> None:
    bench = linear(budget_bytes=4000 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    refused = [at(bench, 16, precision="tf32"), at(bench, 32, precision="tf32"), at(bench, 64, precision="tf32")]
    for plan in refused:
        before = judge.likely(at(bench, 16, optimizer="fused"))
        judge.tell(plan)
    assert judge.likely(at(bench, 16, optimizer="fused")) <= 1 / 3 < before


def test_a_size_at_which_two_combinations_did_not_fit_is_doubted_in_all() -> None:
    bench = linear(budget_bytes=4000 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    other = at(bench, 16, optimizer="fused")
    chances = []
    for precision in ("tf32", "bf16"):
        judge.tell(at(bench, 16, precision=precision))
        chances.append(judge.likely(other))
    assert chances[1] <= 1 / 3 < chances[0]
    judge.run(at(bench, 16))  # it ran, so it is not the size alone
    assert judge.likely(other) > chances[1]


def test_between_a_size_that_ran_and_one_that_did_not_it_may_be_either() -> None:
    bench = linear(budget_bytes=100_000 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    judge.tell(at(bench, 64))
    assert judge.likely(at(bench, 64)) == 0.0
    assert judge.likely(at(bench, 16)) <= 1 - (16 - 8) / (64 - 8)
    assert judge.likely(at(bench, 32)) < judge.likely(at(bench, 16))


def test_where_nothing_grows_larger_sizes_are_likely_once_two_ran() -> None:
    bench = small_bench(sample_mib=0.01, logits_mib=0.0, gradient_mib=600.0, budget_bytes=1100 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    judge.run(at(bench, 16))
    assert judge.likely(at(bench, 32)) > 0.5


def test_after_three_out_of_memories_a_plan_with_a_value_that_was_only_ever_refused_is_known() -> None:
    bench = linear(budget_bytes=4000 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    tried, place = judge.model.tried, judge.place(at(bench, 4, optimizer="foreach", precision="bf16"))
    for size in (16, 32, 64):
        assert not tried.has_refused_value(place)
        judge.tell(at(bench, size, optimizer="foreach"))
    assert tried.has_refused_value(place)
    assert not tried.has_refused_value(judge.place(at(bench, 4, optimizer="fused", precision="bf16")))
    ran = bench.evaluate(at(bench, 4, optimizer="foreach"), Purpose.PROBE).model_copy(
        update={"status": Status.OVER_BUDGET, "reason": "larger"}
    )
    judge.tell(at(bench, 4, optimizer="foreach"), ran)
    assert not tried.has_refused_value(place), "its memory is known"
