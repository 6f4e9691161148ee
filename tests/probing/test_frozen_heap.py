"""The heap is frozen while a bench is open."""

import gc
import weakref

import pytest

from autofit.probing import frozen_heap
from autofit.probing.frozen_heap import FrozenHeap, is_frozen
from tests.probing import targets
from tests.probing.benches import bench_of

pytestmark = pytest.mark.usefixtures("heap_not_frozen")


def test_the_heap_is_frozen_while_open_and_not_afterwards() -> None:
    assert not is_frozen()
    with bench_of(targets.make_mlp()):
        assert is_frozen()
    assert not is_frozen()


def test_what_the_interpreter_freezes_itself_is_no_frozen_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # Python 3.12 with torch, after a collection
    assert not is_frozen()


def test_what_was_frozen_before_this_process_was_forked_is_no_frozen_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenHeap, "inherited", 0)
    gc.freeze()
    try:
        assert is_frozen()
        frozen_heap.inherit()
        assert not is_frozen()
        held = [[] for _ in range(2 * frozen_heap.MOST_IMMORTAL)]  # type: ignore[var-annotated]  # empty lists
        gc.freeze()
        assert is_frozen()
        assert held
    finally:
        gc.unfreeze()


def test_a_heap_that_the_user_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with bench_of(targets.make_mlp()):
            assert gc.get_freeze_count() <= count
        assert is_frozen()
        assert gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("on_host", [False, True])
def test_garbage_is_collected_first_where_it_takes_memory_from_plans(on_host: bool) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    gone: list[bool] = []
    weakref.finalize(Cycle(), gone.append, True)
    heap = FrozenHeap(on_host=on_host)
    heap.freeze()
    assert bool(gone) is not on_host
    heap.unfreeze()
    gc.collect()
    assert gone


def test_garbage_is_collected_as_usual_once_the_imports_are_done() -> None:
    usual = gc.get_threshold()
    frozen_heap.collect_rarely()
    try:
        assert gc.get_threshold()[0] > 100 * usual[0]
        frozen_heap.collect_as_usual()
        assert gc.get_threshold() == usual
        frozen_heap.collect_rarely()
        gc.set_threshold(50_000)  # by the user's code
        frozen_heap.collect_as_usual()
        assert gc.get_threshold()[0] == 50_000
    finally:
        gc.set_threshold(*usual)
