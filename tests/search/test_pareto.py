"""The front: which measured plans are worth their memory, given that times and peaks are noisy."""

import random
from itertools import pairwise

from autofit.search.choice import SAME_MEMORY_RATIO, FrontPoint, front

TIE = 0.02


def keys(*points: tuple[str, float, int]) -> str:
    return "".join(point.key for point in front([FrontPoint(*point) for point in points], TIE))


def test_faster_plans_that_need_more_memory_are_on_the_front_lightest_first() -> None:
    assert keys(("c", 3.0, 3000), ("a", 1.0, 1000), ("b", 2.0, 2000)) == "abc"


def test_a_plan_that_is_slower_and_heavier_is_not() -> None:
    assert keys(("a", 2.0, 1000), ("b", 1.5, 2000), ("c", 3.0, 3000)) == "ac"


def test_a_gain_within_the_tie_margin_is_not_worth_memory() -> None:
    assert keys(("a", 1.0, 1000), ("b", 1.019, 2000)) == "a"
    assert keys(("a", 1.0, 1000), ("b", 1.021, 2000)) == "ab"


def test_of_the_same_memory_only_the_fastest_counts() -> None:
    assert keys(("a", 1.0, 1000), ("b", 1.01, 1000)) == "b"
    assert keys(("a", 1.0, 1000), ("b", 1.5, 1010)) == "b"
    assert keys(("a", 1.0, 1000), ("b", 1.5, 1011)) == "ab"


def test_equals_are_there_once() -> None:
    assert keys(("b", 1.0, 1000), ("a", 1.0, 1000)) == "a"
    assert keys(("a", 1.0, 1005), ("b", 1.0, 1000)) == "b"


def test_small_steps_in_speed_do_not_add_up_to_the_loss_of_the_fastest() -> None:
    """Each ties with the next lighter one: pair by pair only the slowest would be left."""
    chain = [(letter, 1.015**n, 1000 * (n + 1)) for n, letter in enumerate("abcdefgh")]
    assert keys(*chain) == "aceg"


def test_small_steps_in_memory_do_not_add_up_to_the_loss_of_the_lightest() -> None:
    chain = [(letter, 1.1**n, round(1000 * 1.008**n)) for n, letter in enumerate("abcdefg")]
    assert keys(*chain) == "aceg"


def test_nothing_measured_is_no_front() -> None:
    assert front([], TIE) == []


def test_whatever_is_left_out_has_one_on_the_front_that_is_as_good() -> None:
    draw = random.Random(0)
    for _ in range(300):
        points = [
            FrontPoint(
                str(n), draw.choice((1.0, draw.uniform(0.9, 1.1), draw.uniform(0.1, 2))), draw.randint(950, 1100)
            )
            for n in range(draw.randint(1, 12))
        ]
        kept = front(points, TIE)
        assert kept == front(points[::-1], TIE)
        assert all(a.speed * (1 + TIE) < b.speed for a, b in pairwise(kept))
        assert all(a.memory_bytes * (1 + SAME_MEMORY_RATIO) < b.memory_bytes for a, b in pairwise(kept))
        for point in points:
            assert any(
                k.speed * (1 + TIE) >= point.speed and k.memory_bytes <= point.memory_bytes * (1 + SAME_MEMORY_RATIO)
                for k in kept
            )
