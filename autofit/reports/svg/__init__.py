"""The pictures of a report as SVG text, drawn without a plotting library. A notebook shows one, and it can be saved."""

from dataclasses import dataclass
from pathlib import Path

from autofit.core.errors import UsageError
from autofit.reports.report import Report
from autofit.reports.svg.gain import RACE, WHY
from autofit.reports.svg.memory import BREAKDOWN, TIMELINE
from autofit.reports.svg.speed import ANSWERS, CURVES, FRONT

CHARTS = (WHY, FRONT, CURVES, BREAKDOWN, TIMELINE, ANSWERS, RACE)
"""All charts, in the order of a report."""
KINDS = tuple(chart.kind for chart in CHARTS)
"""Names of the charts that can be plotted."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart as SVG with its style, and which of `KINDS` it is. A notebook shows it without a further package."""

    kind: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Plot {self.kind}, {len(self.svg) / 1000:.0f} kB of SVG>"

    def save(self, path: str | Path) -> None:
        """Writes the picture to a file, whose name must end in ".svg".

        Raises:
            UsageError: the name ends otherwise, or the file cannot be written.
        """
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise UsageError(f'a plot is saved as SVG, found {str(path)!r}. Give a name such as "{target.stem}.svg".')
        try:
            target.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{self.svg}\n', encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {str(path)!r}: {error.strerror}. Give a writable path.") from None


def plot(report: Report, kind: str) -> Plot:
    """Returns one chart of a report; `kind` is one of `KINDS`.

    Raises:
        UsageError: no chart has this name, or the report has no values for it.
    """
    chart = next((chart for chart in CHARTS if chart.kind == kind), None)
    if chart is None:
        raise UsageError(f"there is no plot {kind!r}; the plots are {', '.join(KINDS)}. Choose one of these.")
    drawing = chart.draw(report, True)
    if drawing is None:
        raise UsageError(f"there is nothing to plot as {kind!r}: {chart.missing}. Choose another plot.")
    return Plot(kind, drawing.svg(alone=True))
