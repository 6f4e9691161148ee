"""Every process that runs a part of the tests collects the same names: otherwise xdist refuses to run any."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def computed_times(names: Iterable[tuple[Path, str]]) -> list[str]:
    """Returns the tests named by a time that does not stand in their file, so that it was computed when it was read."""
    return [name for path, name in names for time in TIME.findall(name) if time not in path.read_text()]


def test_no_test_is_named_by_the_time_at_which_it_was_collected(request: pytest.FixtureRequest) -> None:
    assert computed_times((item.path, item.nodeid) for item in request.session.items) == []


def test_the_rule_finds_a_computed_time(tmp_path: Path) -> None:
    file = tmp_path / "test_nights.py"
    file.write_text('NIGHT = "2026-11-24T08:31:09"')
    names = ["test_nights.py::test_a[2026-11-24T08:31:09]", "test_nights.py::test_a[2026-11-24T08:31:10]"]
    assert computed_times((file, name) for name in names) == names[1:]
