"""Plots: what a notebook shows and a file holds, and messages for what cannot be plotted."""

from pathlib import Path

import pytest

from autofit.core.errors import UsageError
from autofit.reports.svg import KINDS, plot
from tests.reports.samples import hostile, infeasible, typical
from tests.reports.xml_tree import tree


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_document_of_its_own(kind: str) -> None:
    made = plot(typical(), kind)
    root = tree(made._repr_svg_())
    assert root.getAttribute("width") == "860"
    assert root.getElementsByTagName("style")
    assert kind in repr(made)


def test_a_point_says_its_plan_without_a_script() -> None:
    made = plot(typical(), "front").svg
    assert "<title>micro batch 128 x 2 accumulation steps = 256, precision=bf16" in made


def test_a_saved_plot_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    plot(hostile(), "front").save(path)
    assert tree(path.read_text()).tagName == "svg"


@pytest.mark.parametrize("name", ["x.png", "x", "x.svg/y.svg"])
def test_what_cannot_be_saved_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.svg").touch()
    with pytest.raises(UsageError, match=r"SVG|cannot write"):
        plot(typical(), "race").save(tmp_path / name)


def test_unknown_kinds_and_kinds_without_values_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no plot 'pie'; the plots are why, front, curves, breakdown"):
        plot(typical(), "pie")
    with pytest.raises(UsageError, match="no plan was measured within the budget"):
        plot(infeasible(), "front")
