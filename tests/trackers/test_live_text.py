"""Parts of the live line become shorter in a fixed order until the line fits."""

import pytest

from autofit.terminal import cells
from autofit.trackers.live_text import bar, compact, fitted, of_budget, short_time

PARTS = {
    "phase": ("race: round 3", "race"),
    "trials": ("7 trials", "7", ""),
    "now": ("now a plan: 5 of 7 MiB", "now 5 of 7 MiB", "5 of 7 MiB", "5/7 MiB"),
    "bar": ("#####-----", ""),
    "end": ("1.3x so far, up to about 47 s left", "1.3x so far, ~47 s left", "1.3x, ~47 s left"),
}


def test_the_bar_goes_first_and_phase_answer_and_time_stay() -> None:
    lines = list(dict.fromkeys(fitted(PARTS, width) for width in range(120, 25, -1)))
    assert "#" in lines[0]
    assert all("#" not in line for line in lines[1:])
    assert lines[-3:] == [
        "race 7 5/7 MiB 1.3x, ~47 s left",
        "race 5/7 MiB 1.3x, ~47 s left",
        "race  7  1.3x, ~47 s left",
    ]


@pytest.mark.parametrize("width", range(0, 120, 7))
def test_it_fits(width: int) -> None:
    assert cells(fitted(PARTS, width)) <= width


@pytest.mark.parametrize(
    ("share", "drawn"), [(-1.0, ""), (0.0, "----------"), (0.46, "#####-----"), (1.0, "#" * 10), (3.0, "#" * 10)]
)
def test_a_bar_is_filled_by_its_share(share: float, drawn: str) -> None:
    assert bar(share, blocks=False) == drawn


def test_figures_are_short() -> None:
    assert [short_time(each) for each in (-5.0, 59.9, 61.0, 3725.0)] == ["0 s", "59 s", "1:01", "1:02:05"]
    assert of_budget(2**20, None) == "1 MiB"
    assert of_budget(3 * 2**20, 2**30) == "3 MiB of 1 GiB"
    assert (compact("53.7 of 72 MiB"), compact("53 MiB of 2 GiB"), compact("3 MiB")) == (
        "53.7/72 MiB",
        "53M/2G",
        "3 MiB",
    )
