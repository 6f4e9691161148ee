"""A signal that arrives while a record is written takes effect afterwards, and is not lost."""

import os
import signal
import threading

import pytest

from autofit.core.uninterrupted import uninterrupted


def test_an_interrupt_waits_for_the_end() -> None:
    before, done = signal.getsignal(signal.SIGINT), list[str]()

    def write() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("written")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert done == ["written"]
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_restored_after_an_error_and_without_a_signal() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with uninterrupted():
        pass
    with pytest.raises(ValueError, match="full"), uninterrupted():
        raise ValueError("full")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_is_not_affected() -> None:
    entered: list[bool] = []

    def work() -> None:
        with uninterrupted():
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [True]
