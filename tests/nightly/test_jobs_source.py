"""The texts of problems: one line each, short, with the line of the value, without secrets."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from autofit.nightly.jobs_source import MOST_PROBLEMS, JobsSource, shown


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int
    inner: Inner = Inner()


def source(folder: Path, text: str) -> JobsSource:
    path = folder / "jobs.yaml"
    path.write_text(text)
    return JobsSource.read(path)


def test_a_problem_has_the_line_of_its_value_or_of_what_is_around_it(tmp_path: Path) -> None:
    found = source(tmp_path, "a: 1\nb:\n  - c: 2\n    d: 3\n")
    path = tmp_path / "jobs.yaml"
    assert found.problem(("b", 0, "d"), "", "3", "4") == f"{path}, line 4: found 3; expected 4"
    assert found.problem(("b", 0, "missing", "x"), "job a", "3", "4") == f"{path}, line 3: job a: found 3; expected 4"
    assert found.problem(("z",), "", "3", "4") == f"{path}, line 1: found 3; expected 4"


def test_the_problems_of_a_record_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = source(tmp_path, "inner: {color: x}\nnumber: many\n")
    first, second = problems = found.checked(Outer, found.data)
    assert isinstance(problems, list)
    assert "line 1: found the unknown key 'color'; expected a known key; did you mean `colour`?" in first
    assert "line 2: `number`: found 'many'; expected" in second
    assert found.checked(Outer, {"number": 3}) == Outer(number=3)


def test_more_problems_than_a_reader_wants_are_counted(tmp_path: Path) -> None:
    found = source(tmp_path, "number: 1\n")
    problems = found.checked(Outer, {"number": 1, **{f"x{number}": 1 for number in range(99)}}, (), "job a")
    assert isinstance(problems, list)
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1].endswith(f"job a has {99 - MOST_PROBLEMS} more errors")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"), (3, "3"), (True, "True"), ("a\nb", r"'a\nb'"), ({"a": 1}, "a mapping"),
        ([1, 2], "a list"), ("x" * 99, f"'{'x' * 59} ..."),
        ("mysql://me:hunter2@h/d" + "x" * 99, "'mysql://***@h/d" + "x" * 44 + " ..."),
        ("\x1b[31mred", r"'\x1b[31mred'"), ("a\u202eb", r"'a\u202eb'"),
    ],
)  # fmt: skip
def test_a_value_is_shown_short_and_without_secrets(value: object, text: str) -> None:
    assert shown(value) == text
