"""Columns of a table are aligned, the first one wraps, and no row loses a figure where there is no room."""

import pytest

from autofit.reports.tables import Column, table
from autofit.terminal import cells

PLANS = Column("Tried", ["micro batch 8, precision=bf16", "micro batch 16"])
RATIOS = Column("vs baseline", ["0.95x (0.90 to 1.00)", "1.05x (1.00 to 1.10)"], right=True)
SPEEDS = Column("samples/s", ["950", "1,050"], right=True)
PEAKS = Column("peak", ["48 MiB", ""], right=True)


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert table([PLANS, SPEEDS, Column("nothing", ["", ""]), PEAKS], 60) == [
        "Tried                            samples/s    peak",
        "  micro batch 8, precision=bf16        950  48 MiB",
        "  micro batch 16                     1,050",
    ]


def test_the_first_column_wraps_and_then_rows_are_stacked() -> None:
    columns = [PLANS, RATIOS, SPEEDS, PEAKS]
    shown = {width: table(columns, width) for width in (80, 70, 68, 40)}
    assert [len(lines) for lines in shown.values()] == [3, 4, 5, 7]
    assert ["samples/s" in lines[0] for lines in shown.values()] == [True, True, False, False]


@pytest.mark.parametrize("width", range(40, 90, 5))
def test_no_row_loses_a_figure_at_any_width(width: int) -> None:
    for others in ([RATIOS, SPEEDS, PEAKS], [SPEEDS, PEAKS]):
        text = " ".join(" ".join(table([PLANS, *others], width)).split())
        assert all(each in text for column in others for each in column.texts)


def test_what_fits_nowhere_stands_below() -> None:
    assert table([PLANS, RATIOS, PEAKS], 40) == [
        "Tried",
        "  micro batch 8, precision=bf16",
        "    vs baseline 0.95x (0.90 to 1.00),",
        "    peak 48 MiB",
        "  micro batch 16",
        "    vs baseline 1.05x (1.00 to 1.10)",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_table_and_wide_letters_count_twice(width: int) -> None:
    wide = Column("Tried", ["内存不足 " * 20, "x"])
    lines = table([wide, RATIOS, SPEEDS, PEAKS], width)
    assert all(cells(line) <= width for line in lines)


def test_a_column_may_wrap_beside_the_others() -> None:
    reasons = Column("", ["not faster beyond the noise", ""], most=15)
    assert table([PLANS, SPEEDS, reasons], 80) == [
        "Tried                            samples/s",
        "  micro batch 8, precision=bf16        950  not faster",
        "                                            beyond the",
        "                                            noise",
        "  micro batch 16                     1,050",
    ]
