"""Reading a picture: its texts with the boxes that they take, and the points of plans."""

from dataclasses import dataclass
from typing import Any
from xml.dom.minidom import Element

from autofit.reports.markup import DataTable
from autofit.reports.report import Report
from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import Box, Chart, Drawing, text_width
from tests.reports.xml_tree import tree

SIZES = {"af-note": 12.0, "af-bad": 12.0, "af-label": 13.0, "af-strong": 13.0}


@dataclass(frozen=True)
class Picture:
    """A picture that was drawn, taken apart."""

    root: Any

    @property
    def bounds(self) -> Box:
        left, top, width, height = map(float, self.root.getAttribute("viewBox").split())
        return Box(left, top, left + width, top + height)

    def texts(self) -> list[tuple[str, Box]]:
        """Returns each text with a box that is a little smaller than the text, so that neighbours do not touch."""
        found = []
        for node in self.root.getElementsByTagName("text"):
            text = "".join(child.data for child in node.childNodes)
            size = SIZES[node.getAttribute("class")]
            width, x, y = text_width(text, size) * 0.9, float(node.getAttribute("x")), float(node.getAttribute("y"))
            left = x - {"": 0.0, "middle": 0.5, "end": 1.0}[node.getAttribute("text-anchor")] * width
            found.append((text, Box(left, y - 0.75 * size, left + width, y)))
        return found

    def words(self) -> list[str]:
        """Returns the texts."""
        return [text for text, _ in self.texts()]

    def points(self) -> dict[int, Element]:
        """Returns the points of plans by rank."""
        nodes = [*self.root.getElementsByTagName("path"), *self.root.getElementsByTagName("circle")]
        return {int(node.getAttribute("data-r")): node for node in nodes if node.hasAttribute("data-r")}

    def of_class(self, kind: str) -> list[Element]:
        """Returns the elements with a class."""
        return [node for node in self.root.getElementsByTagName("*") if kind in node.getAttribute("class").split()]


def picture(kind: str, report: Report) -> Picture:
    """Returns a chart of a report."""
    chart = next(chart for chart in CHARTS if chart.kind == kind)
    return Picture(tree(drawn(chart, report).svg(alone=True)))


def drawn(chart: Chart, report: Report, *, titles: bool = False) -> Drawing:
    """Returns a chart of a report as it is drawn."""
    found = chart.draw(report, titles)
    assert found is not None
    return found


def values(chart: Chart, report: Report) -> DataTable:
    """Returns the values of a chart that has a table of its own."""
    found = drawn(chart, report).table
    assert found is not None
    return found


def overlap(one: Box, other: Box) -> bool:
    """Returns whether two rectangles overlap."""
    apart_x = one.right <= other.left or other.right <= one.left
    return not apart_x and one.top < other.bottom and other.top < one.bottom
