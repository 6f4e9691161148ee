"""YAML holds JSON's values and nothing more, as it is written and as it is read."""

import math
from typing import Any

import pytest
import yaml

from autofit import strict_yaml

VALUES: list[Any] = [
    {"none": None, "yes": True, "number": -3, "fraction": 1e-300, "text": "1:30", "date": "2024-01-01", "no": "no"},
    {"nested": {"list": [{"a": []}, {}]}, "empty": ""},
    {"breaks": "\x85\u2028\u2029", "lines": "a\nb\n", "spaces": "  x "},
    {"far": math.inf, "below": -math.inf},
]


@pytest.mark.parametrize("value", VALUES)
def test_what_is_dumped_is_loaded_with_its_types(value: Any) -> None:
    found = strict_yaml.load(strict_yaml.dump(value))
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", VALUES)
def test_any_reader_understands_what_is_dumped(value: Any) -> None:
    assert yaml.safe_load(strict_yaml.dump(value)) == value


def test_numbers_are_on_one_line_and_nothing_is_an_alias() -> None:
    numbers = [1, 2.5]
    assert strict_yaml.dump({"a": numbers, "b": numbers}) == "a: [1, 2.5]\nb: [1, 2.5]\n"


@pytest.mark.parametrize("text", ["yes", "2024-01-01", "1:30", "0x10", "1_000", "=", "<<"])
def test_what_only_yaml_takes_for_a_value_is_a_text(text: str) -> None:
    assert strict_yaml.load(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x", "an alias"),
        ("!!python/object:os.system x", "the tag"),
        ("a: 1\na: 2", "twice"),
        ("[1]: 2", "as a key"),
        (f"a: {'9' * 30}", "a number of 30 digits"),
        ("[" + "1," * (strict_yaml.MAX_NODES + 1) + "]", "more than"),
    ],
)
def test_what_can_be_large_or_say_two_things_is_refused(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError, match=words):
        strict_yaml.load(text)


def test_each_value_has_the_line_of_its_key_or_its_item() -> None:
    text = "# a comment\na: 1\nlist:\n  - x\n  - b: 2\n    c:\n      long\nflow: {d: [1,\n  2]}\n"
    found, lines = strict_yaml.load_with_lines(text)
    assert found == strict_yaml.load(text)
    assert lines == {
        (): 2, ("a",): 2, ("list",): 3, ("list", 0): 4, ("list", 1): 5, ("list", 1, "b"): 5, ("list", 1, "c"): 6,
        ("flow",): 8, ("flow", "d"): 8, ("flow", "d", 0): 8, ("flow", "d", 1): 9,
    }  # fmt: skip
    assert strict_yaml.load_with_lines("# nothing\n") == (None, {(): 1})


@pytest.mark.parametrize("value", VALUES)
def test_data_with_lines_are_the_same_data(value: Any) -> None:
    assert repr(strict_yaml.load_with_lines(strict_yaml.dump(value))[0]) == repr(value)


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x", "a: 1\na: 2", "a: 1\n---\nb: 2", "a: [", "[" * 20000])
def test_data_with_lines_are_refused_as_without(text: str) -> None:
    with pytest.raises((yaml.YAMLError, RecursionError)):
        strict_yaml.load_with_lines(text)
