"""Block order: what is written is read back, and other text is not an order."""

import pytest

from autofit.core.block_order import read_order, written_order


def test_an_order_is_written_in_runs_and_read_back() -> None:
    for order in [(0,), (0, 1, 2), (2, 1, 0), (0, 1, 2, 7, 4, 5, 6, 3)]:
        assert read_order(written_order(order)) == order
    assert written_order((0, 1, 2, 7, 4, 5, 6, 3)) == "0-2,7,4-6,3"
    assert read_order("") == ()


@pytest.mark.parametrize("text", ["0,2,x", "-1,0,1", "0-999999999", "0, 1", "1,", ",1", ",", 3])
def test_something_else_is_not_an_order(text: object) -> None:
    assert read_order(text) is None
