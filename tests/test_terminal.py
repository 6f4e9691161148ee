"""What a stream can show, and text broken into lines."""

import io

import pytest

from autofit.terminal import bar, cells, cut, cut_middle, has_blocks, has_colour, is_terminal, paint, wrapped


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_a_dumb_terminal_cannot_move_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (is_terminal(Stream(True)), has_colour(Stream(True))) == (True, True)
    assert (is_terminal(Stream(False)), has_colour(Stream(False))) == (False, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert (is_terminal(Stream(True)), has_colour(Stream(True))) == (True, False)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert (is_terminal(Stream(True)), has_colour(Stream(True))) == (False, False)


def test_blocks_need_utf8() -> None:
    assert has_blocks(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert not has_blocks(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert not has_blocks(io.StringIO())


def test_nothing_is_painted_without_text_or_colour() -> None:
    assert paint("fits", "good") == "\x1b[32mfits\x1b[0m"
    assert paint("fits", "") == "fits"
    assert paint("", "good") == ""


def test_words_are_kept_whole_and_lines_begin_as_asked() -> None:
    assert wrapped("one two\n  three", 9, "- ", "  ") == ["- one two", "  three"]
    assert wrapped("", 9, "- ") == ["-"]


def test_a_word_longer_than_a_line_is_split_and_a_path_is_not() -> None:
    assert wrapped("a " + "x" * 20 + " b", 9) == ["a", "x" * 9, "x" * 9, "xx b"]
    assert wrapped("use optimizer_implementation=fused, or", 18, "- ", "  ") == [
        "- use optimizer_", "  implementation=", "  fused, or",
    ]  # fmt: skip
    assert wrapped("whisper", 7, "", "  ") == ["whisper"]
    assert wrapped("in " + "/tmp" * 5, 9) == ["in", "/tmp" * 5]
    assert wrapped("内存" * 4, 5) == ["内存"] * 4


def test_a_text_is_cut_at_a_space_if_one_is_near() -> None:
    assert cut("a tie, decided by the number of changes", 28) == "a tie, decided by the.."
    assert cut("tried 2 GiB", 11) == "tried 2 GiB"
    assert cut("a checkpointed_blocks=2", 20) == "a checkpointed_blo.."
    assert cut("word " * 9, 12) == "word word.."


def test_the_middle_of_a_long_text_is_replaced() -> None:
    assert cut_middle("a" * 20, 20) == "a" * 20
    assert cut_middle("ValueError: " + "x" * 90 + " (train.py:10)", 40) == "ValueError: xxxxx ... xxxx (train.py:10)"


@pytest.mark.parametrize("width", [10, 17, 40])
def test_wide_letters_count_twice(width: int) -> None:
    lines = wrapped("内存 不足 out of memory " * 9, width, "", "  ")
    assert all(cells(line) <= width for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(("内存 不足 out of memory " * 9).split())


@pytest.mark.parametrize(("text", "count"), [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1)])
def test_wide_letters_take_two_cells_and_combining_ones_none(text: str, count: int) -> None:
    assert cells(text) == count


@pytest.mark.parametrize(
    ("share", "plain", "blocks"),
    [
        (-1.0, "----------", "░░░░░░░░░░"), (1e-9, "#---------", "▏░░░░░░░░░"), (0.46, "#####-----", "████▋░░░░░"),
        (1.0, "#" * 10, "█" * 10), (3.0, "#" * 10, "█" * 10),
    ],
)  # fmt: skip
def test_a_bar_is_filled_by_its_share(share: float, plain: str, blocks: str) -> None:
    assert (bar(share, 10, False, "-"), bar(share, 10, True, "░")) == (plain, blocks)
