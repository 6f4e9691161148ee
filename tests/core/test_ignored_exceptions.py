"""Frames in which Python ignores exceptions are found, and no others."""

import logging
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType

import pytest

from autofit.core.uninterrupted import ignores_exceptions


class Thing:
    """An object that ends."""


def in_a_finalizer(look: Callable[[], None]) -> None:
    class Finalized:
        def __del__(self) -> None:
            look()

    Finalized()


def in_a_callback(look: Callable[[], None]) -> None:
    thing = Thing()
    watched = weakref.ref(thing, lambda ended: look())
    del thing
    assert watched() is None


def in_a_callback_of_a_weak_set(look: Callable[[], None]) -> None:
    class Looking(Thing):
        def __hash__(self) -> int:
            return 1

    things: weakref.WeakSet[Looking] = weakref.WeakSet()
    thing = Looking()
    things.add(thing)
    sys.setprofile(lambda frame, event, argument: look() if "_weakrefset" in frame.f_code.co_filename else None)
    try:
        del thing
    finally:
        sys.setprofile(None)


def in_a_hook_of_a_fork(look: Callable[[], None]) -> None:
    me = os.getpid()

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and os.getpid() == me and frame.f_code.co_filename == logging.__file__:
            look()

    sys.setprofile(called)
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)
    finally:
        sys.setprofile(None)
    os.waitpid(child, 0)


@pytest.mark.parametrize("place", [in_a_finalizer, in_a_callback, in_a_callback_of_a_weak_set, in_a_hook_of_a_fork])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_an_exception_would_be_ignored(place: Callable[[Callable[[], None]], None]) -> None:
    found: list[bool] = []
    place(lambda: found.append(ignores_exceptions(sys._getframe())))
    assert found
    assert all(found)


def test_an_exception_is_raised_elsewhere() -> None:
    thing = Thing()

    def holds(watched: weakref.ref[Thing]) -> bool:
        return ignores_exceptions(sys._getframe())

    assert not holds(weakref.ref(thing))
    assert not ignores_exceptions(sys._getframe())
    assert not ignores_exceptions(None)
