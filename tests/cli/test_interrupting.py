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


def test_sigint_is_handled_inside_unless_it_is_ignored() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, terminable("run it again"):
        os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.args == ()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable("run it again"):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class Watched:
    """An object that a weak dictionary holds."""


@pytest.mark.parametrize(("sign", "said"), [(signal.SIGTERM, "terminated; run it again"), (signal.SIGINT, "^$")])
def test_a_signal_in_a_finalizer_or_a_weak_callback_is_not_lost(sign: signal.Signals, said: str) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(sign)

    def in_a_callback() -> None:
        weak, watched = weakref.WeakKeyDictionary[Watched, int](), Watched()
        weak[watched] = 1
        sys.setprofile(struck_in_weakref)
        try:
            del watched
        finally:
            sys.setprofile(None)

    def struck_in_weakref(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == weakref.__file__:
            sys.setprofile(None)
            signal.raise_signal(sign)

    def run(strike: Callable[[], object]) -> None:
        with terminable("run it again"):
            strike()
            time.sleep(10)

    for strike in (Finalized, in_a_callback):
        with pytest.raises(KeyboardInterrupt, match=said):
            run(strike)
