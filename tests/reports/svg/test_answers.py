"""When each answer came: one step per answer, named by its factor, up to the end of the search."""

from itertools import pairwise

import pytest

from autofit.reports.report import AnswerTime, Report
from autofit.reports.svg.answers import ANSWERS, table
from tests.reports.samples import typical
from tests.reports.svg.reading import Picture, picture


def corners(found: Picture) -> list[tuple[float, float]]:
    """Returns the corners of the step line."""
    line = found.of_class("af-line-rec")[0].getAttribute("d")
    return [(float(x), float(y)) for x, y in (point.split() for point in line[1:].split("L"))]


def crowded(count: int) -> Report:
    """A report with this many answers within a few seconds, each a little faster."""
    report = typical()
    times = (
        AnswerTime(at_s=30 + n / 4, rank=n % 9 + 1, rate_per_s=200 + 4 * n, ratio=1 + n / 50) for n in range(count)
    )
    return report.model_copy(update={"answers": tuple(times)})


def test_the_line_has_one_step_for_each_answer_and_ends_with_the_search() -> None:
    report = typical()
    line = corners(picture("answers", report))
    assert len(line) == 2 * len(report.answers)
    assert all(x1 == x2 or y1 == y2 for (x1, y1), (x2, y2) in pairwise(line))
    assert len({y for _, y in line}) == len(report.answers)
    seconds = [x for x, _ in line[::2]] + [line[-1][0]]
    first, last = report.answers[0].at_s, report.answers[-1].at_s
    assert (seconds[-1] - seconds[0]) / (seconds[-2] - seconds[0]) == pytest.approx(
        (report.duration_s - first) / (last - first), rel=0.01
    )


@pytest.mark.parametrize("width", [860.0, 344.0])
def test_each_step_is_named_by_its_factor_and_marked_by_its_plan(width: float) -> None:
    report = typical()
    found = picture("answers", report, width)
    assert {f"{each.ratio:.2f}x" for each in report.answers} <= set(found.words())
    assert set(found.points()) == {each.rank for each in report.answers}


@pytest.mark.parametrize("width", [860.0, 344.0])
def test_of_answers_in_nearly_one_place_the_last_is_named_and_no_names_overlap(width: float) -> None:
    texts = [(text, box) for text, box in picture("answers", crowded(30), width).texts() if text.endswith("x")]
    assert "1.58x" in [text for text, _ in texts]
    assert not [a for a in texts for b in texts if a is not b and a[1].overlaps(b[1])]


def test_without_a_baseline_a_step_is_named_by_its_throughput() -> None:
    report = typical()
    answers = tuple(each.model_copy(update={"ratio": None}) for each in report.answers)
    words = picture("answers", report.model_copy(update={"answers": answers})).words()
    assert sum(text.endswith(" samples/s") for text in words) == len(answers)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_answers_are_no_curve(count: int) -> None:
    assert not ANSWERS.available(typical(answers=typical().answers[:count]))


def test_a_step_down_is_explained() -> None:
    report = typical()
    assert "goes down" not in ANSWERS.note(report)
    fallen = (*report.answers, report.answers[0].model_copy(update={"at_s": 80.0}))
    assert ANSWERS.note(report.model_copy(update={"answers": fallen})).startswith(
        "A step goes down where a later proof"
    )


def test_the_table_says_when_each_answer_came() -> None:
    report = typical()
    rows = table(report).rows
    assert [row[1] for row in rows] == ["5.2 s", "12 s", "19 s", "41 s", "59 s"]
    assert rows[0][0] == "micro batch 16 × 16"
    assert rows[0][3] == "1.00x"
