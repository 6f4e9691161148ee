"""The fixture that every test ends with sees what a test leaves behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from tests import leaks
from tests.leaks import State


@contextmanager
def a_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def a_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@contextmanager
def a_descriptor() -> Iterator[None]:
    number = os.open(os.devnull, os.O_RDONLY)
    yield
    os.close(number)


@contextmanager
def a_switch() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("leak", "named"),
    [
        (a_thread, "thread 'forgotten'"), (a_process, "process "), (a_descriptor, os.devnull),
        (a_switch, "default dtype: torch.float32 became torch.float64"),
    ],
)  # fmt: skip
def test_what_is_left_behind_is_named(
    leak: Callable[[], AbstractContextManager[None]], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.0)
    before = State.now()
    with leak():
        assert named in " ".join(before.left_over())
    assert before.left_over() == []


def test_nothing_is_left_by_doing_nothing() -> None:
    assert State.now().left_over() == []
