"""What holds for every chart of every report: labels are inside and apart, and nothing in it runs or loads."""

from itertools import combinations

import pytest

from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import Chart
from tests.reports import samples
from tests.reports.svg.reading import drawn, overlap, picture
from tests.reports.xml_tree import tree

REPORTS = {name: make() for name, make in samples.ALL.items()}
DRAWN = [
    pytest.param(name, chart.kind, id=f"{name}-{chart.kind}")
    for name, report in REPORTS.items()
    for chart in CHARTS
    if chart.draw(report, False) is not None
]


@pytest.mark.parametrize(("name", "kind"), DRAWN)
def test_labels_are_inside_and_do_not_overlap(name: str, kind: str) -> None:
    found = picture(kind, REPORTS[name])
    texts = found.texts()
    bounds = found.bounds
    assert [
        text for text, box in texts if box.left < -1 or box.right > bounds.right + 1 or box.bottom > bounds.bottom
    ] == []
    assert [(one, other) for (one, a), (other, b) in combinations(texts, 2) if overlap(a, b)] == []


@pytest.mark.parametrize(("name", "kind"), DRAWN)
def test_a_picture_has_no_script_style_attribute_or_address(name: str, kind: str) -> None:
    chart = next(chart for chart in CHARTS if chart.kind == kind)
    root = tree(drawn(chart, REPORTS[name], titles=True).svg())
    for node in [root, *root.getElementsByTagName("*")]:
        assert node.tagName not in {"script", "image", "use", "foreignObject", "a", "style"}
        names = [str(key).lower() for key in dict(node.attributes.items())]
        assert not [key for key in names if key.startswith("on") or key in {"style", "href", "xlink:href", "src"}]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_a_chart_describes_itself(chart: Chart) -> None:
    report = REPORTS["typical"]
    made = drawn(chart, report)
    assert made.about.endswith(".")
    assert len(made.about) > 40
    assert chart.aid.count(".") >= 1
    assert made == drawn(chart, report)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_a_report_without_the_values_has_no_such_chart(chart: Chart) -> None:
    assert chart.draw(REPORTS["infeasible"], False) is None
    assert chart.missing


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_tables_are_complete(chart: Chart) -> None:
    table = drawn(chart, REPORTS["typical"]).table
    if table is not None:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert all(all(row) for row in table.rows)
