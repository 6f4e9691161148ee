"""Charts of sample histories, taken apart."""

from collections.abc import Mapping, Sequence
from functools import cache
from xml.dom.minidom import Element

from autofit.nightly.outputs.trend import chart
from autofit.nightly.outputs.trend.jobs import Trend, trends
from autofit.nightly.records import NightRecord
from autofit.nightly.result import NightResult
from autofit.reports.svg.drawing import Format
from tests.nightly import samples
from tests.reports.svg.reading import Picture
from tests.reports.xml_tree import tree


def of(records: Sequence[NightRecord], name: str = "gpt") -> Trend:
    """Returns the trend of a job with these nights."""
    return trends(NightResult(night=records[-1].night), {name: records})[0]


@cache
def year() -> Mapping[str, Trend]:
    """Returns the trends of the whole sample history, of 20 jobs and so thinned, by name."""
    found = trends(samples.result(samples.year()), samples.year())
    return {trend.name: trend for trend in found}


def picture(trend: Trend, width: float = 860.0) -> Picture:
    """Returns the chart of a job."""
    assert chart.available(trend)
    return Picture(tree(chart.draw(trend, Format(width)).svg(alone=True)))


def marks(found: Picture) -> list[Element]:
    """Returns the marks of the nights, in the order in which they are drawn."""
    (group,) = found.of_class("tr-nights")
    return list(group.getElementsByTagName("path"))
