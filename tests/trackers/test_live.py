"""The live line goes on while nothing happens, scrolls what is finished, leaves nothing, and survives forks."""

import io
import os
import re
import threading
import time

import pytest

from autofit.trackers import live
from autofit.trackers.live import LiveLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK_S", 0.01)


def test_the_line_is_drawn_anew_without_events(quick: None) -> None:
    count, stream = iter(range(10**6)), Terminal()
    line = LiveLine(stream, lambda width: f"tick {next(count)}")
    until = time.monotonic() + 20
    while "tick 3" not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    line.close()
    text = stream.getvalue()
    assert "tick 3" in text
    assert text.split("\r")[-1].replace("\x1b[K", "").strip() == ""
    assert "autofit progress" not in [thread.name for thread in threading.enumerate()]


def test_it_is_as_wide_as_the_terminal_is_now(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    line = LiveLine(stream, lambda width: f"[{width}]")
    line.scroll(lambda width: [f"row {width}"])
    monkeypatch.setenv("COLUMNS", "100")
    line.scroll(lambda width: [f"row {width}"])
    line.close()
    assert "row 59\n" in stream.getvalue()
    assert "row 99\n" in stream.getvalue()
    assert "[99]" in stream.getvalue()


def test_a_line_that_a_narrower_terminal_has_wrapped_is_cleared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    line = LiveLine(stream, lambda width: "x" * width)
    line.scroll(lambda width: [])
    before = len(stream.getvalue())
    monkeypatch.setenv("COLUMNS", "40")  # 99 cells are 3 rows now, and the cursor is in the last
    line.scroll(lambda width: [])
    line.close()
    assert stream.getvalue()[before:].startswith("\x1b[2K" + "\x1b[A\x1b[2K" * 2 + "\r")
    assert max(map(len, re.sub(r"\x1b\[2?[AK]", "", stream.getvalue()[before:]).split("\r"))) == 39  # nothing is padded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_the_line_is_drawn_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK_S", 0.0)
    line = LiveLine(Terminal(), lambda width: "x" * width)
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                free = live._drawing.acquire(timeout=5)
                os._exit(0 if free else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        line.close()
