"""What reaches a terminal can be seen and commands nothing (defect 15)."""

import json

import pytest

from autofit.core.printable import ascii_json, one_line, printable

UNSEEN = "\x1b\x07\x9b\x7f\x00\u202e\u202a\u2066\u2069\u200e\u200f\u061c\u2028\u2029\ufeff\u200b\U000e0041"


def test_printable_takes_out_what_commands_a_terminal() -> None:
    assert printable("\x1b[31mred\x1b[0m\x07 \x9b2Jé\tline\nnext\r") == "red 2Jé\tline\nnext"


@pytest.mark.parametrize("letter", UNSEEN)
def test_what_cannot_be_seen_is_taken_out(letter: str) -> None:
    assert printable(f"a{letter}b") == "ab"


def test_what_people_write_stays() -> None:
    text = "naïve 日本語 \N{HEBREW LETTER ALEF} می\u200cخواهم 👩\u200d💻 €\tx\n"
    assert printable(text) == text


def test_half_a_surrogate_pair_can_be_printed() -> None:
    assert printable("file\udcff.py").encode() == "file\ufffd.py".encode()


def test_one_line_has_single_spaces_and_no_break() -> None:
    assert one_line("a\nb\x85c \u2028 d\te\x1b[2J  f\u202e") == "a b c d e f"


@pytest.mark.parametrize("letter", [*UNSEEN, "é", "日", "👩", "\ud800"])
def test_json_is_ascii_and_means_the_same(letter: str) -> None:
    document = json.dumps({"a": f"x{letter}y"}, ensure_ascii=False, indent=2)
    told = ascii_json(document)
    assert told.isascii()
    assert letter not in told
    assert json.loads(told) == json.loads(document)
