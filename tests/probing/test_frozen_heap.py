"""The heap is frozen while a bench is open."""

import gc

import pytest

from tests.probing import targets
from tests.probing.benches import bench_of

pytestmark = pytest.mark.usefixtures("heap_not_frozen")


def test_the_heap_is_frozen_while_open_and_not_afterwards() -> None:
    assert gc.get_freeze_count() == 0
    with bench_of(targets.make_mlp()):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_heap_that_the_user_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with bench_of(targets.make_mlp()):
            assert gc.get_freeze_count() <= count
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()
