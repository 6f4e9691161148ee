"""The panel of memory: peaks, the limit of their noise, the budget, and regressions."""

from autofit.nightly.outputs.trend import memory_panel
from tests.nightly import samples
from tests.nightly.outputs.trend.drawn import of, picture, year

HISTORY = samples.year()
GIB = 2**30


def test_a_growth_of_memory_is_marked_night_by_night() -> None:
    found = picture(year()["unet"]).of_class("vr")
    assert len(found) == 23
    assert not picture(year()["bert"]).of_class("vr")[1:]  # the one of its noisy week is in the panel above


def test_a_budget_that_is_near_is_a_line_and_one_that_is_far_a_sentence() -> None:
    near, far = picture(year()["gpt"]), picture(year()["resnet50"])
    assert len(near.of_class("af-budget")) == 1
    assert "budget 20 GiB" in near.words()
    assert not far.of_class("af-budget")
    assert "budget 20 GiB, beyond this axis" in far.words()
    unknown = [one.model_copy(update={"budget_bytes": None}) for one in HISTORY["gpt"][-9:]]
    assert not [word for word in picture(of(unknown)).words() if "budget" in word]


def test_peaks_and_limits_are_inside_the_axis() -> None:
    for trend in year().values():
        (low, high), _ = memory_panel.axis(trend)
        for entry in trend.entries:
            values = (entry.peak_bytes, entry.last.verdict.high_bytes)
            assert all(low < value < high for value in values if value is not None)


def test_a_night_between_two_failures_is_still_visible() -> None:
    records = list(HISTORY["gpt"][-5:])
    failed = {"accepted": None, "verdict": HISTORY["vit"][-1].verdict}
    for place in (0, 1, 3):
        records[place] = records[place].model_copy(update=failed)
    found = picture(of(records)).of_class("tr-single")
    assert len(found) == 1
    assert found[0].getAttribute("d").count("M") == 2


def test_the_limit_is_drawn_where_nights_were_compared() -> None:
    assert len(picture(year()["gpt"]).of_class("af-peak")) == 1
    assert not picture(of(HISTORY["whisper"])).of_class("af-peak")
