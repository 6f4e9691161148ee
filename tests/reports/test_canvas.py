"""Bars and colours only where a terminal can show them."""

import io
import os

import pytest

from autofit.reports.canvas import Canvas
from autofit.terminal import columns, cut


class Terminal(io.StringIO):
    """A stream that says what it is."""

    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # fixed by the test
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_a_terminal_gets_colour_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Canvas.of(Terminal(True)).colour
    assert not Canvas.of(Terminal(False)).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Canvas.of(Terminal(True)).colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Canvas.of(Terminal(True)).colour


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("20", 40), ("400", 120)])
def test_it_is_as_wide_as_the_terminal_within_reason(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert os.environ["COLUMNS"] == columns
    assert Canvas.of(Terminal(True)).width == width
    assert Canvas.of(Terminal(False)).width == 100


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "cp1252"])
def test_without_utf8_bars_are_plain(encoding: str) -> None:
    canvas = Canvas.of(Terminal(False, encoding))
    assert canvas.bar(0.5, 10) == "#####     "
    assert canvas.bar(0.5, 10).isascii()


def test_blocks_draw_eighths() -> None:
    canvas = Canvas(blocks=True)
    assert canvas.bar(0.5, 10) == "█████     "
    assert canvas.bar(0.55, 10) == "█████▌    "
    assert canvas.bar(1.0, 4) == "████"


@pytest.mark.parametrize("blocks", [True, False])
def test_what_is_not_nothing_is_visible_and_nothing_is_not(blocks: bool) -> None:
    canvas = Canvas(blocks=blocks)
    assert canvas.bar(1e-9, 10).strip()
    assert not canvas.bar(0.0, 10).strip()
    assert {len(canvas.bar(share, 10)) for share in (0.0, 1e-9, 0.33, 0.999, 1.0, 7.0, -1.0)} == {10}


def test_colour_wraps_the_bar_and_not_its_padding() -> None:
    assert Canvas(colour=True).bar(0.5, 4) == "\x1b[36m##\x1b[0m  "
    assert Canvas().paint("fits", "good") == "fits"


@pytest.mark.parametrize(
    ("text", "width", "kept"),
    [("abcdef", 6, "abcdef"), ("abcdef", 5, "abc.."), ("abcdef", 2, ".."), ("abcdef", 0, ""), ("日本語", 6, "日本語"),
     ("日本語", 5, "日.."), ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301")],
)  # fmt: skip
def test_what_is_cut_fits_the_cells(text: str, width: int, kept: str) -> None:
    assert cut(text, width) == kept


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_the_width_is_that_of_the_terminal_that_is_written_to() -> None:
    """Not of the one that standard output is on, which may be a file."""
    leader, follower = os.openpty()
    pytest.importorskip("termios").tcsetwinsize(follower, (30, 77))
    with os.fdopen(follower, "w") as stream:
        assert columns(stream) == 77
        assert Canvas.of(stream).width == 77
    os.close(leader)
