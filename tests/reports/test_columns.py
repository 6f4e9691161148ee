"""Columns of a table are aligned, drop out where there is no room, and the first one wraps."""

import pytest

from autofit.reports.columns import Column, table
from autofit.terminal import cells

PLANS = Column("Tried", ["micro batch 8, precision=bf16", "micro batch 16"])
RATIOS = Column("vs baseline", ["0.95x (0.90 to 1.00)", "1.05x (1.00 to 1.10)"], right=True)
SPEEDS = Column("samples/s", ["950", "1,050"], drops=2, right=True)
PEAKS = Column("peak", ["48 MiB", ""], drops=1, right=True)


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert table([PLANS, SPEEDS, Column("nothing", ["", ""]), PEAKS], 60) == [
        "Tried                            samples/s    peak",
        "  micro batch 8, precision=bf16        950  48 MiB",
        "  micro batch 16                     1,050",
    ]


def test_the_first_column_wraps_and_then_columns_drop_out() -> None:
    columns = [PLANS, RATIOS, SPEEDS, PEAKS]
    shown = {width: table(columns, width) for width in (80, 68, 60, 50)}
    assert [len(lines) for lines in shown.values()] == [3, 3, 4, 4]
    assert ["samples/s" in lines[0] for lines in shown.values()] == [True, False, False, False]
    assert ["peak" in lines[0] for lines in shown.values()] == [True, True, True, False]


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
