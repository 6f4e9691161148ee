"""SIGTERM interrupts inside the context alone, and says what to do then."""

import os
import signal

import pytest

from autofit.cli.interrupting import terminable


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="terminated; run it again"), terminable("run it again"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
