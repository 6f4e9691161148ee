"""Values from the words of a command line: memory, names, keyword arguments, overrides."""

import argparse
from typing import Any

import pytest

from autofit.cli.values import keywords, memory, names, options, overrides, pins
from autofit.core.briefing import Options
from autofit.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("0.5", 0.5), ("1", 1.0), ("20GiB", "20GiB"), ("1e-3", 1e-3)]
)
def test_memory_is_a_fraction_or_an_amount(text: str | None, value: float | str | None) -> None:
    assert memory(text) == value


@pytest.mark.parametrize("text", ["much", "", "-1GiB", "0", "nan"])
def test_memory_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        memory(text)


def test_names_are_separated_by_commas() -> None:
    assert names(None) is None
    assert names("batching, precision") == ("batching", "precision")


def test_keyword_arguments_are_yaml() -> None:
    assert keywords(["depth=12", "name=small", "flags=[1, true]", "text=a=b", 'day="2026-01-31"']) == {
        "depth": 12,
        "name": "small",
        "flags": [1, True],
        "text": "a=b",
        "day": "2026-01-31",
    }


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("depth", "is not of the form NAME=VALUE"),
        ("=3", "is not of the form NAME=VALUE"),
        ("two words=3", "is not of the form NAME=VALUE"),
        ("day=2026-01-31", "Quote a string that YAML reads as something else"),
        ("value=[1", "cannot be read"),
    ],
)
def test_a_pair_that_cannot_be_read_is_refused(pair: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        keywords([pair])


def given(**changes: Any) -> argparse.Namespace:
    said: dict[str, Any] = dict.fromkeys(
        ("memory", "numerics", "strategies", "without", "seed", "global_batch", "mode", "max_grad_norm")
    )
    return argparse.Namespace(**said | changes)


def test_options_that_were_not_given_keep_their_defaults() -> None:
    assert options(given()) == Options()
    asked = options(given(memory="0.5", numerics="exact", strategies="batching", seed=3))
    assert (asked.memory_budget, asked.numerics, asked.strategies, asked.seed) == (0.5, "exact", ("batching",), 3)
    asked = options(given(without="batching, precision", pinned=["a=1", "b=on"]))
    assert (asked.without, asked.pinned) == (("batching", "precision"), {"a": 1, "b": True})


def test_pins_are_read_as_yaml_and_checked() -> None:
    assert pins(["precision=bf16", "micro_batch_size=16", "fuse=true"]) == {
        "precision": "bf16", "micro_batch_size": 16, "fuse": True
    }  # fmt: skip
    for pairs, said in (
        (
            ["precision"],
            "--set 'precision' is not of the form NAME=VALUE. Write, for example, --set precision=bf16.",
        ),
        (["depth=1.5"], "--set depth=1.5 has no value that a knob can have"),
        (["depth=[1, 2]"], "--set depth=[1, 2] has no value that a knob can have"),
        (["a=1", "b=1", "a=2"], "--set a has several values: 1, 2. Give it once."),
        (["a=]"], "the value of --set 'a=]' cannot be read"),
    ):
        with pytest.raises(UsageError) as error:
            pins(pairs)
        assert said in str(error.value)


def test_overrides_are_the_workloads_fields() -> None:
    assert overrides(given(mode="inference")) == {
        "global_batch_size": None,
        "mode": "inference",
        "max_grad_norm": None,
    }
    assert overrides(given(max_global_batch=64))["max_global_batch_size"] == 64
