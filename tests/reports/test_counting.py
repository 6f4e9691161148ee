"""Numbers and results in words."""

import pytest

from autofit.core.briefing import GateRecord
from autofit.reports.counting import answer_times, counted, difference, moment, runs, verdict
from tests.reports.samples import typical


def test_one_thing_is_singular_and_thousands_are_separated() -> None:
    assert [counted(count, "plan") for count in (0, 1, 2, 1200)] == ["0 plans", "1 plan", "2 plans", "1,200 plans"]


def test_runs_are_counted_beside_the_plans() -> None:
    found = typical(counts={"measured": 1018, "out of memory": 1})
    assert runs(found) == "1,019 trials of 16 plans: 1,018 measured, 1 out of memory"
    assert runs(typical(counts={})) == ""
    rows = (found.rows[0].model_copy(update={"earlier": True}), *found.rows[1:])
    assert runs(found.model_copy(update={"rows": rows})) == "1,019 trials: 1,018 measured, 1 out of memory"


def test_when_each_answer_came_is_one_line_for_two_answers_or_more() -> None:
    found = typical()
    first, *_, last = found.answers
    both = found.model_copy(update={"answers": (first, last)})
    assert answer_times(both) == f"1.00x after 5.2 s, {last.ratio:.2f}x after 59 s"
    assert answer_times(found.model_copy(update={"answers": (last,)})) == ""
    bare = both.model_copy(update={"answers": tuple(a.model_copy(update={"ratio": None}) for a in both.answers)})
    assert answer_times(bare).startswith("198.4 samples/s after 5.2 s, ")


def test_a_check_that_could_not_be_run_has_not_failed() -> None:
    reasons = {
        "could not be checked: the gradient is zero on this batch": "not checked",
        "accumulation could not be checked: noise 0.3. Use more samples": "not checked",
        "the gradient is not finite": "failed",
    }
    for reason, expected in reasons.items():
        assert verdict(GateRecord(name="accumulation", passed=False, reason=reason)) == expected
    assert verdict(GateRecord(name="accumulation", passed=True, reason="could not be checked")) == "passed"


@pytest.mark.parametrize(("ratio", "text"), [(-0.0001, "0.0%"), (0.0004, "0.0%"), (0.031, "+3.1%"), (-0.2, "-20.0%")])
def test_zero_has_no_sign(ratio: float, text: str) -> None:
    assert difference(ratio) == text


def test_a_time_has_whole_seconds_in_utc() -> None:
    assert moment("2026-11-24T20:11:08.123456+00:00") == "2026-11-24 20:11:08 UTC"
    assert moment("2026-11-24T21:11:08+01:00") == "2026-11-24 20:11:08 UTC"
    assert [moment("yesterday"), moment("")] == ["yesterday", ""]
