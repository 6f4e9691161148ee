"""Rows of finished trials drop columns on a narrow terminal, and get a new head when it changes width."""

import pytest

from autofit.core.outcome import Status
from autofit.terminal import cells
from autofit.trackers.trial_rows import TrialRows, short_plan
from autofit.trackers.yardstick import Yardstick
from tests.trackers.test_search_state import BASELINE, BEST, trial

AGAINST = Yardstick(baseline=BASELINE)


@pytest.mark.parametrize(
    ("width", "head", "row"),
    [
        (79, "        ratio  samples/s        peak  micro batch", "    2   1.32x        132      54 MiB  8 x 4, pre"),
        (59, "        ratio        peak  micro batch x", "    2   1.32x      54 MiB  8 x 4, precision=bf16"),
        (39, "        ratio  micro batch x..", "    2   1.32x  8 x 4, precision=bf16,"),
    ],
)  # fmt: skip
def test_columns_drop_out_on_a_narrow_terminal(width: int, head: str, row: str) -> None:
    lines = TrialRows(AGAINST).lines(trial(BEST, 132.0, 54), "2", 1.32, True, width)
    assert [line[: len(text)] for line, text in zip(lines, (head, row), strict=False)] == [head, row]
    assert lines[-1].endswith("checkpointed_blocks=2")
    assert all(cells(line) <= width for line in lines)


@pytest.mark.parametrize("width", [39, 59, 79])
def test_rows_of_different_plans_differ_at_any_width(width: int) -> None:
    """They differ in the last knob only, which a cut would hide."""
    plans = [BEST.replace(optimizer_implementation=value, checkpointed_blocks=2) for value in ("fused", "foreach")]
    for status, reason in ((Status.MEASURED, ""), (Status.OUT_OF_MEMORY, "tried to allocate " + "much " * 40)):
        rows = TrialRows(AGAINST)
        rows.lines(trial(BEST), "1", None, False, width)  # the head
        first, second = (rows.lines(trial(p, status=status, reason=reason), "2", None, False, width) for p in plans)
        assert first != second
        assert all(cells(line) <= width for line in (*first, *second))


def test_the_head_comes_again_when_the_columns_change() -> None:
    rows = TrialRows(AGAINST)
    counts = [len(rows.lines(trial(BEST), "1", 1.0, False, width)) for width in (99, 99, 39, 39, 99)]
    assert counts == [2, 1, 3, 2, 2]


def test_without_the_baseline_a_narrow_row_has_the_throughput() -> None:
    assert "    1     132  8 x 4" in TrialRows(AGAINST).lines(trial(BEST, 132.0), "1", None, True, 39)[1]


def test_colour_is_added_after_the_row_is_cut() -> None:
    rows = TrialRows(AGAINST, colour=True)
    best = rows.lines(trial(BEST, 132.0, 54), "2", 1.32, True, 39)[1]
    assert best == "    2\x1b[32m   1.32x\x1b[0m  8 x 4, precision=bf16,"
    failed = rows.lines(trial(BEST, status=Status.OUT_OF_MEMORY), "3", None, False, 39)[0]
    assert failed == "    3\x1b[31m  out of memory\x1b[0m  8 x 4,"


def test_wide_letters_count_twice() -> None:
    wide = trial(BASELINE, status=Status.OUT_OF_MEMORY, reason="内存不足" * 30)
    assert all(cells(line) <= 80 for line in TrialRows(AGAINST).lines(wide, "1", None, False, 80))


def test_a_plan_is_its_batch_and_what_it_changes() -> None:
    assert short_plan(BASELINE, BASELINE) == "baseline"
    assert short_plan(BEST, BASELINE) == "8 x 4, precision=bf16, checkpointed_blocks=2"
    assert short_plan(BEST, None) == "8 x 4"
