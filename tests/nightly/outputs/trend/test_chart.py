"""What holds for the chart of every job: labels are inside and apart, and it says what it shows."""

from itertools import combinations

import pytest

from autofit.nightly.outputs.trend import chart
from autofit.nightly.outputs.trend.jobs import trends
from autofit.reports.svg.drawing import NARROW, WIDE, Format
from tests.nightly import samples
from tests.nightly.outputs.trend.drawn import of, picture, year
from tests.reports.xml_tree import tree

OTHERS = {
    "first night": of(samples.first_night()["gpt"]),
    "a month": of(samples.year()["vit"][-30:]),
    "whole year": of(samples.year()["resnet50"]),
    "hostile": trends(samples.hostile_result(), samples.hostile())[0],
}
DRAWN = {**year(), **OTHERS}


@pytest.mark.parametrize("width", [WIDE.width, NARROW.width])
@pytest.mark.parametrize("name", DRAWN)
def test_labels_are_inside_and_do_not_overlap(name: str, width: float) -> None:
    found = picture(DRAWN[name], width)
    texts, bounds = found.texts(), found.bounds
    outside = [
        text for text, box in texts if box.left < -1 or box.right > bounds.right + 1 or box.bottom > bounds.bottom
    ]
    assert outside == []
    assert [(one, other) for (one, a), (other, b) in combinations(texts, 2) if a.overlaps(b)] == []


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_no_script_style_attribute_or_address(name: str) -> None:
    root = tree(chart.draw(DRAWN[name], Format(860.0)).svg())
    for node in [root, *root.getElementsByTagName("*")]:
        assert node.tagName in {"svg", "g", "path", "rect", "text"}
        names = [str(key).lower() for key in dict(node.attributes.items())]
        assert not [key for key in names if key.startswith("on") or key in {"style", "href", "src"}]


def test_a_chart_describes_itself() -> None:
    about = chart.about(year()["gpt"])
    assert about.startswith("Throughput and peak memory of gpt over 365 nights since 2025-11-26 01:00 UTC. ")
    assert about.endswith("Newest night, 2026-11-25 01:00 UTC: regression. 46,670 tokens/s, peak 14.87 GiB.")
    assert "over one night. " in chart.about(OTHERS["first night"])


def test_a_job_that_never_ran_has_no_chart() -> None:
    assert not chart.available(of(samples.failing()["gpt"]))
    assert chart.available(year()["vit"])


def test_older_nights_that_share_points_are_shaded() -> None:
    assert len(picture(year()["gpt"]).of_class("af-band")) == 1
    assert not picture(OTHERS["a month"]).of_class("af-band")


def test_the_same_job_is_drawn_the_same() -> None:
    assert chart.draw(year()["gpt"], WIDE) == chart.draw(year()["gpt"], WIDE)
