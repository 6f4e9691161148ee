"""Texts of values and code are the same in every process."""

import enum
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from autofit.identity.stable_text import MOST_ITEMS, assigned_by, names_of, plain, text_of


class Colour(enum.Enum):
    RED = 1


class Number(int):
    """Writes itself in its own way."""

    def __repr__(self) -> str:
        return f"a number {id(self)}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("three", "'three'"),
        (torch.float16, "torch.float16"),
        (torch.ones(2, 3), "Tensor(2, 3)torch.float32"),
        (np.float32(0.5), "float320.5"),
        (Colour.RED, "Colour.RED"),
        (re.compile("a+"), "Pattern a+"),
        (pathlib.PurePosixPath("a/b"), "PurePosixPath a/b"),
        (Number(7), "Number 7"),
        ([1, {"b": 2, "a": 1}], "list(1, dict('a': 1, 'b': 2))"),
        ({3, 1, 2}, "set(1, 2, 3)"),
        (list(range(MOST_ITEMS + 1)), f"list of {MOST_ITEMS + 1}"),
    ],
    ids=range(12),
)
def test_a_plain_value_has_a_text(value: Any, text: str) -> None:
    assert plain(value) == text


def test_what_is_not_plain_has_none_nor_has_what_holds_it() -> None:
    assert plain(object()) is None
    assert plain([1, object()]) is None


def test_a_container_that_holds_itself_and_a_long_text_have_short_ones() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert plain(ring) == "list(1, itself)"
    first, second = "a" * 2000, "a" * 1999 + "b"
    assert plain(first) != plain(second)
    assert len(plain(first) or "") < 50


def documented() -> int:
    """Says something."""
    return 3


def undocumented() -> int:
    return 3


def assigning(owner: Any) -> None:
    global counted  # noqa: PLW0603  # what the test is about
    counted = 1
    owner.seen = torch.ones(1)


counted = 0


def test_docstrings_do_not_count_and_code_does() -> None:
    assert text_of(documented.__code__) == text_of(undocumented.__code__)
    assert text_of(documented.__code__) != text_of(assigning.__code__)


def test_what_code_names_and_assigns() -> None:
    assert {"torch", "ones", "seen", "counted"} <= names_of(assigning.__code__)
    assert assigned_by(assigning.__code__) == (frozenset({"seen"}), frozenset({"counted"}))


def test_a_set_has_the_same_text_whatever_the_hash_seed() -> None:
    code = "from autofit.identity.stable_text import plain; print(plain({'b', 'a', 'c', ('x', 1)}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
