"""The panel of throughput: a mark for each night, in the shape of its verdict, and marks for plans."""

import re
from itertools import pairwise

from autofit.nightly.outputs.trend import throughput_panel
from tests.nightly import samples
from tests.nightly.outputs.trend.drawn import marks, of, picture, year

HISTORY = samples.year()


def test_each_entry_has_a_mark_oldest_first() -> None:
    for trend in year().values():
        for width in (860.0, 344.0):
            nodes = marks(picture(trend, width))
            places = [float(re.findall(r"[0-9.]+", node.getAttribute("d"))[0]) for node in nodes]
            assert len(places) == len(trend.entries)
            assert all(one < other + 7 for one, other in pairwise(places))


def test_marks_have_the_style_of_their_verdict() -> None:
    styles = [node.getAttribute("class") for node in marks(picture(year()["bert"]))]
    assert (styles.count("vf"), styles.count("vr"), styles.count("ve")) == (4, 1, 0)
    assert styles.count("vc") == 3


def test_a_night_without_a_throughput_is_below_the_panel() -> None:
    found = picture(year()["vit"])
    assert "none" in found.words()
    heights = {node.getAttribute("class"): node.getAttribute("d").split()[1].split("l")[0] for node in marks(found)}
    assert float(heights["ve"]) > 220
    assert "none" not in picture(year()["gpt"]).words()


def test_a_regression_of_memory_alone_is_a_dot_here() -> None:
    assert "vr" not in {node.getAttribute("class") for node in marks(picture(year()["unet"]))}


def test_every_night_and_band_is_inside_the_axis() -> None:
    for trend in year().values():
        (low, high), ticks = throughput_panel.axis(trend.entries)
        for entry in trend.entries:
            assert all(low < rate < high for rate in (*entry.rates_per_s, *(entry.band or ())))
        assert len(ticks) >= 3


def test_a_new_plan_and_a_proposed_one_have_their_marks() -> None:
    assert len(picture(year()["resnet50"]).of_class("tr-plan")) == 1
    proposed = picture(year()["clip"]).of_class("tr-proposed")
    assert len(proposed) == 1
    accepted = HISTORY["clip"][-1].model_copy(update={"replaced": True})
    found = picture(of([*HISTORY["clip"][-9:-1], accepted]))
    assert (len(found.of_class("tr-plan")), len(found.of_class("tr-proposed"))) == (1, 0)


def test_nights_that_share_a_point_have_a_line_from_the_slowest_to_the_fastest() -> None:
    (ranges,) = picture(year()["gpt"]).of_class("tr-range")
    shared = sum(len(entry.records) > 1 for entry in year()["gpt"].entries)
    assert ranges.getAttribute("d").count("V") == shared
    assert not picture(of(HISTORY["gpt"][-20:])).of_class("tr-range")
