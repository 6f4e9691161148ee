"""What each change brings, when each answer came, and the race."""

import math
from itertools import pairwise
from typing import Any

import pytest

from autofit.core.answer import Ratio
from autofit.core.objective import TIE_RATIO
from autofit.reports.report import PlanRow, Report
from autofit.reports.svg.gain import RACE, WHY, changes
from autofit.reports.svg.speed import ANSWERS
from autofit.search.choice import TIE_LOSS
from tests.reports.samples import typical
from tests.reports.svg.reading import drawn, picture, values

BEFORE: dict[str, bool | int | str] = {"precision": "fp32", "compile": "off", "optimizer_implementation": "default"}
BF16: dict[str, Any] = {"precision": "bf16"}
COMPILED: dict[str, Any] = {"compile": "blocks"}
FUSED: dict[str, Any] = {"optimizer_implementation": "fused"}


def plan(rate: float | None, size: int = 8, *, raced: bool = False, **values: bool | int | str) -> PlanRow:
    """Returns the row of a plan with some values other than the baseline's."""
    steps = 64 // size
    return PlanRow(
        rank=1,
        label="a plan",
        combination="",
        values={"micro_batch_size": size, "accumulation_steps": steps, **BEFORE, **values},
        micro_batch_size=size,
        accumulation_steps=steps,
        status="measured" if rate else "out of memory",
        rate_per_s=rate,
        gain=Ratio(value=rate / 100, low=rate / 110, high=rate / 90, pairs=9 if raced else 0) if rate else None,
    )


def of(best: PlanRow, *others: PlanRow) -> Report:
    """Returns the report of a baseline of 100 samples/s, a recommended plan, and others."""
    baseline = plan(100.0, raced=True).model_copy(update={"is_baseline": True, "role": "baseline"})
    best = best.model_copy(update={"role": "recommended"})
    rows = sorted((baseline, best, *others), key=lambda row: -(row.rate_per_s or 0.0))
    ranked = tuple(row.model_copy(update={"rank": place}) for place, row in enumerate(rows, start=1))
    return typical().model_copy(update={"rows": ranked})


def told(report: Report) -> list[tuple[str, str]]:
    return [(change.name, change.effect) for change in changes(report)]


def test_each_change_that_was_measured_is_a_step_in_the_order_of_its_effect() -> None:
    best = plan(400.0, 32, raced=True, **BF16, **FUSED)
    found = of(best, plan(150.0, 32), plan(200.0, **BF16), plan(320.0, 32, **BF16), plan(110.0, **FUSED))
    assert told(found) == [
        ("+ bf16 precision", "about 2.00x"),
        ("+ micro batch 32 × 2", "about 1.60x"),
        ("+ fused optimizer implementation", "about 1.25x"),
    ]


def test_changes_that_were_only_measured_together_are_one_step() -> None:
    found = of(plan(400.0, 64, raced=True, **BF16, **COMPILED), plan(160.0, 64))
    assert told(found) == [("+ micro batch 64", "about 1.60x"), ("+ blocks compile, bf16 precision", "about 2.50x")]
    assert told(of(plan(400.0, 64, raced=True, **BF16))) == [("+ bf16 precision with micro batch 64", "4.00x")]


def test_only_what_both_plans_raced_for_is_not_marked_as_estimated() -> None:
    found = of(plan(300.0, raced=True, **BF16, **FUSED), plan(200.0, raced=True, **BF16))
    assert told(found) == [("+ bf16 precision", "2.00x"), ("+ fused optimizer implementation", "1.50x")]


def test_plans_with_other_values_and_without_a_throughput_are_on_no_way() -> None:
    others = (
        plan(190.0, 16, **BF16), plan(500.0, **BF16, **COMPILED), plan(None, **BF16), plan(210.0, precision="fp16"),
    )  # fmt: skip
    assert told(of(plan(300.0, 32, raced=True, **BF16, **FUSED), *others)) == [
        ("+ fused optimizer implementation, bf16 precision with micro batch 32 × 2", "3.00x")
    ]


def test_a_change_that_slows_down_and_pays_with_the_next_one_goes_back() -> None:
    slower: dict[str, Any] = {"checkpointed_blocks": 4}
    found = of(plan(180.0, 64, raced=True, **slower), plan(80.0, **slower))
    assert [effect for _, effect in told(found)] == ["about 0.80x", "about 2.25x"]
    drawn = picture("why", found)
    assert [len(drawn.of_class(style)) for style in ("af-bar-base", "af-bar-rec")] == [2, 2]


def test_bars_begin_where_the_one_before_ended() -> None:
    report = typical()
    drawn = picture("why", report)
    boxes = [
        tuple(float(bar.getAttribute(name)) for name in ("y", "x", "width"))
        for style in ("af-bar-base", "af-bar-rec")
        for bar in drawn.of_class(style)
    ]
    ends = [(left, left + size) for _, left, size in sorted(boxes)]
    assert len(ends) == len(changes(report)) + 2
    for (_, end), (start, _) in pairwise(ends[:-1]):
        assert start == pytest.approx(end, abs=0.2)
    assert ends[-1][1] == pytest.approx(ends[-2][1], abs=0.2)


def test_the_steps_multiply_to_the_ratio_of_the_throughputs() -> None:
    report = typical()
    product = 1.0
    for change in changes(report):
        product *= change.ratio
    best, baseline = report.recommended, report.baseline
    assert best is not None
    assert baseline is not None
    assert product == pytest.approx((best.rate_per_s or 0.0) / (baseline.rate_per_s or 1.0))
    assert len(values(WHY, report).rows) == len(changes(report)) > 1


def test_where_the_baseline_is_kept_or_has_no_throughput_there_is_no_chart() -> None:
    best = plan(300.0, **BF16)
    kept = of(best).rows[1].model_copy(update={"role": "recommended", "rank": 1})
    lost = of(best).rows[1].model_copy(update={"rate_per_s": None})
    for rows in ((kept,), (of(best).rows[0], lost)):
        assert WHY.draw(typical().model_copy(update={"rows": rows}), False) is None


def test_intervals_are_drawn_around_their_ratio() -> None:
    report = typical()
    found = picture("race", report)
    line = found.of_class("af-whisker-rec")[0].getAttribute("d").strip("M").split("L")
    low, high = (float(end.split()[0]) for end in line)
    racer = report.race[0]
    middle = float(found.points()[racer.rank].getAttribute("d").strip("M").split()[0])
    assert (middle - low) / (high - low) == pytest.approx(0.5, abs=0.02)


def test_rounds_are_drawn_one_by_one() -> None:
    report = typical()
    drawn = picture("race", report).of_class("af-round")
    assert len(drawn) == sum(len(racer.ratios) for racer in report.race)


def test_the_tie_margin_ends_at_the_fastest() -> None:
    found = picture("race", typical())
    band = found.of_class("af-tie")[0]
    assert float(band.getAttribute("width")) > 0
    assert "tie margin 1.5%" in found.words()


def test_the_text_states_the_rule_of_a_tie() -> None:
    loss = math.expm1(TIE_LOSS * math.log1p(TIE_RATIO))
    for said in (f"loses less than {loss:.1%} on average", f"by less than {TIE_RATIO:.0%}"):
        assert said in RACE.aid
    order = [RACE.aid.index(said) for said in ("baseline's batch", "smallest batch", "less memory", "changes less")]
    assert order == sorted(order)


def test_ratios_are_written_and_the_line_at_one_says_which_plan_it_is() -> None:
    words = picture("race", typical()).words()
    assert "2.58x (2.55 to 2.61)" in words
    assert "baseline 1.0x" in words
    assert "recommended plan 1.0x" in picture("race", typical(race_reference="recommended")).words()


def test_a_label_that_is_cut_keeps_the_knob_that_tells_the_plan_apart() -> None:
    report = typical()
    common = ", ".join(f"common_knob_number_{number}=some_value_{number}" for number in range(6))
    ranks = [racer.rank for racer in report.race]
    rows = tuple(
        row.model_copy(update={"combination": f"{common}, apart=value{row.rank}"}) if row.rank in ranks else row
        for row in report.rows
    )
    words = "".join(picture("race", report.model_copy(update={"rows": rows})).words())
    assert "…" in words
    for rank in ranks[:2]:
        assert f"apart=value{rank}" in words


def test_the_table_says_why_a_finalist_left() -> None:
    rows = values(RACE, typical()).rows
    assert rows[0][0].startswith("Recommended, micro batch 128 × 2")
    assert rows[1][-1] == "surely behind after 8 rounds"


def test_the_answers_are_a_staircase_that_ends_with_the_search() -> None:
    report = typical()
    found = picture("answers", report)
    line = found.of_class("af-line-rec")[0].getAttribute("d")
    corners = [(float(x), float(y)) for x, y in (corner.split() for corner in line[1:].split("L"))]
    assert len(corners) == 2 * len(report.answers)
    assert all(x1 == x2 or y1 == y2 for (x1, y1), (x2, y2) in pairwise(corners))
    first, last = report.answers[0].at_s, report.answers[-1].at_s
    left, before_end, end = corners[0][0], corners[-2][0], corners[-1][0]
    assert (end - left) / (before_end - left) == pytest.approx((report.duration_s - first) / (last - first), rel=0.01)
    assert set(found.points()) == {each.rank for each in report.answers}
    assert f"{report.answers[-1].ratio:.2f}x" in found.words()


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_answers_are_no_curve(count: int) -> None:
    assert ANSWERS.draw(typical(answers=typical().answers[:count]), False) is None


def test_a_step_down_is_explained() -> None:
    report = typical()
    assert "goes down" not in drawn(ANSWERS, report).note
    fallen = (*report.answers, report.answers[0].model_copy(update={"at_s": 80.0}))
    note = drawn(ANSWERS, report.model_copy(update={"answers": fallen})).note
    assert note.startswith("A step goes down where a later proof")


def test_the_table_says_when_each_answer_came() -> None:
    rows = values(ANSWERS, typical()).rows
    assert [row[1] for row in rows] == ["5.2 s", "12 s", "19 s", "41 s", "59 s"]
    assert (rows[0][0], rows[0][3]) == ("micro batch 16 × 16", "1.00x")
