"""SIGTERM interrupts inside the context alone, and says what to do then."""

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType

import pytest

from autofit.cli.interrupting import terminable


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="terminated; run it again"), terminable("run it again"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


class Finalized:
    """Is terminated while it is finalized, where Python ignores exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


class Watched:
    """An object that a weak dictionary holds."""


def test_sigterm_in_a_finalizer_or_a_weak_callback_is_not_lost() -> None:
    def in_a_callback() -> None:
        weak, watched = weakref.WeakKeyDictionary[Watched, int](), Watched()
        weak[watched] = 1
        sys.setprofile(terminated_in_weakref)
        try:
            del watched
        finally:
            sys.setprofile(None)

    def terminated_in_weakref(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == weakref.__file__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

    def run(strike: Callable[[], object]) -> None:
        with terminable("run it again"):
            strike()
            time.sleep(10)

    for strike in (Finalized, in_a_callback):
        with pytest.raises(KeyboardInterrupt, match="terminated; run it again"):
            run(strike)
