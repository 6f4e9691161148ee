"""Chart: one kind of picture of a report, with the words that go with it."""

from collections.abc import Callable
from dataclasses import dataclass

from autofit.reports.report import Report
from autofit.reports.svg.drawing import Drawing, Format


@dataclass(frozen=True, slots=True)
class DataTable:
    """The values of a chart, for those who read them or hear them.

    Attributes:
        head: names of the columns. The first column names the row.
        rows: as texts.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of picture.

    Attributes:
        kind: name in `Fit.plot` and anchor in the page.
        heading: what it shows.
        aid: one sentence on how to read it.
        missing: why a report may not have it, for the error of `Fit.plot`.
        available: whether a report has it.
        draw: draws it; only for a report that has it.
        table: its values; None if the table of all plans holds them.
        note: sentences on this report's chart that follow the aid; "" for none. Only for a report that has the chart.
    """

    kind: str
    heading: str
    aid: str
    missing: str
    available: Callable[[Report], bool]
    draw: Callable[[Report, Format], Drawing]
    table: Callable[[Report], DataTable | None]
    note: Callable[[Report], str] = lambda report: ""
