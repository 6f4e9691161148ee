"""The race: ratios with intervals, the line of the baseline, and the tie margin."""

import math

import pytest

from autofit.core.objective import TIE_RATIO
from autofit.reports.svg.race import RACE, table
from autofit.search.choice import TIE_LOSS
from tests.reports.samples import typical
from tests.reports.svg.reading import picture


def test_intervals_are_drawn_around_their_ratio() -> None:
    report = typical()
    found = picture("race", report)
    line = found.of_class("af-whisker-rec")[0].getAttribute("d").strip("M").split("L")
    low, high = (float(end.split()[0]) for end in line)
    racer = report.race[0]
    middle = (
        sum(float(corner.split()[0]) for corner in found.points()[racer.rank].getAttribute("d").strip("MZ").split("L"))
        / 4
    )
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


@pytest.mark.parametrize("width", [860.0, 344.0])
def test_ratios_are_written_and_the_line_at_one_says_which_plan_it_is(width: float) -> None:
    words = picture("race", typical(), width).words()
    assert "2.58x (2.55 to 2.61)" in words
    assert "baseline 1.0x" in words
    assert "recommended plan 1.0x" in picture("race", typical(race_reference="recommended"), width).words()


@pytest.mark.parametrize("width", [860.0, 344.0])
def test_a_label_that_is_cut_keeps_the_knob_that_tells_the_plan_apart(width: float) -> None:
    report = typical()
    common = ", ".join(f"common_knob_number_{number}=some_value_{number}" for number in range(6))
    ranks = [racer.rank for racer in report.race]
    rows = tuple(
        row.model_copy(update={"combination": f"{common}, apart=value{row.rank}"}) if row.rank in ranks else row
        for row in report.rows
    )
    words = "".join(picture("race", report.model_copy(update={"rows": rows}), width).words())
    assert "…" in words
    for rank in ranks[:2]:
        assert f"apart=value{rank}" in words


def test_the_table_says_why_a_finalist_left() -> None:
    rows = table(typical()).rows
    assert rows[0][0].startswith("Recommended, micro batch 128 × 2")
    assert rows[1][-1] == "surely behind after 8 rounds"


def test_a_narrow_race_keeps_names_apart_and_figures_inside() -> None:
    report = typical()
    start = "precision=bf16, memory_format=channels_last, optimizer_implementation="
    rows = list(report.rows)
    for racer, name in zip(report.race[1:], ("fused", "foreach"), strict=True):
        rows[racer.rank - 1] = rows[racer.rank - 1].model_copy(update={"combination": start + name})
    first = report.race[0]
    wide = first.model_copy(update={"ratio": first.ratio.model_copy(update={"low": 0.5, "high": 30.0})})
    race = (wide, *report.race[1:])
    found = picture("race", report.model_copy(update={"rows": tuple(rows), "race": race}), 344.0)
    words = " ".join(found.words())
    assert "fused" in words
    assert "foreach" in words
    assert all(box.left >= 0 and box.right <= 344 for _, box in found.texts())
