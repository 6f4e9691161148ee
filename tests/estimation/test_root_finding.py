"""Where a growing quantity crosses a limit: the answer is right for any shape, and cheap for a line."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.estimation.largest_batches import last_below, on_line


def counted(function: Callable[[int], int]) -> tuple[Callable[[int], int], list[int]]:
    asked: list[int] = []

    def value_of(candidate: int) -> int:
        asked.append(candidate)
        return function(candidate)

    return value_of, asked


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    limit=st.integers(0, 900),
    start=st.integers(0, 50),
)
def test_the_answer_is_the_last_below_for_anything_that_does_not_fall(steps: list[int], limit: int, start: int) -> None:
    values = [sum(steps[: i + 1]) for i in range(len(steps))]
    expected = max((i for i, value in enumerate(values) if value <= limit), default=None)
    value_of, asked = counted(values.__getitem__)
    assert last_below(range(len(values)), value_of, limit, start) == expected
    assert len(asked) == len(set(asked)), "nothing is evaluated twice"


@pytest.mark.parametrize("limit", [1000, 5003, 123456, 999999])
def test_a_line_costs_at_most_five_evaluations(limit: int) -> None:
    value_of, asked = counted(lambda b: 500 + 13 * b)
    found = last_below(range(1, 65537), value_of, limit, start=8)
    assert found == min((limit - 500) // 13, 65536)
    assert len(asked) <= 5


def test_a_flat_beginning_does_not_mislead() -> None:
    value_of, asked = counted(lambda b: max(1000, 10 * b))
    assert last_below(range(1, 65537), value_of, 30_000, start=4) == 3000
    assert len(asked) <= 12


def test_within_the_tolerance_it_stops_early_and_below() -> None:
    value_of, asked = counted(lambda b: 10 * b + (b % 7) * 40)  # not quite growing, as memory is
    found = last_below(range(1, 65537), value_of, 50_000, start=8, tolerance=0.01)
    assert found is not None
    assert value_of(found) <= 50_000
    assert 0.98 * 5000 <= found <= 5000
    assert len(asked) <= 8


def test_what_is_known_is_not_evaluated_again() -> None:
    value_of, asked = counted(lambda b: 10 * b)
    assert last_below(range(1, 101), value_of, 400, start=8, known={8: 80, 16: 160}) == 40
    assert asked == [40, 41]


def test_none_where_the_smallest_is_above_and_the_last_where_all_are_below() -> None:
    assert last_below((1, 2, 4), lambda b: 100 * b, 99, start=4) is None
    assert last_below((1, 2, 4), lambda b: 100 * b, 400, start=1) == 4
    assert last_below((), lambda b: b, 1, start=1) is None


def test_a_number_that_is_no_candidate_helps_to_draw_the_line() -> None:
    value_of, asked = counted(lambda b: 500 + 10 * b)
    assert last_below(range(1, 1001), value_of, 2500, start=100, known={0: 500}) == 200
    assert asked == [100, 200, 201]


def test_on_line_goes_through_the_two_nearest() -> None:
    assert on_line({10: 100, 20: 300, 90: 0}, 30) == 500
    assert on_line({10: 100}, 30) == 300
