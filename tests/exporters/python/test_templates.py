"""Lines of a template are there with the parts that they go with."""

import re

import pytest

from autofit.exporters.python import templates
from autofit.exporters.python.templates import HELPERS, select

TEMPLATE = "always\nwith a  #? a\nwithout a  #? !a\nwith a, not b  #? a !b\n"


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ("", ["always", "without a"]),
        ("a", ["always", "with a", "with a, not b"]),
        ("ab", ["always", "with a"]),
        ("b", ["always", "without a"]),
    ],
)
def test_lines_go_with_their_parts(parts: str, lines: list[str]) -> None:
    assert select(TEMPLATE, frozenset(parts)).splitlines() == lines


def test_what_a_helper_defines_is_called_only_with_its_part() -> None:
    """A plan without the part would else call a function that is not in the file."""
    for loop in (templates.TRAIN, templates.PREDICT):
        for part, text in HELPERS.items():
            for name in re.findall(r"^(?:def|class) (\w+)[(:]", text, re.MULTILINE):
                assert name not in select(loop, frozenset()), (part, name)
