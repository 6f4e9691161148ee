"""What is written on a command line, as values: memory, lists of names, keyword arguments."""

import argparse
import json
from typing import Any

import yaml

from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.units import parse_budget


def memory(text: str | None) -> float | str | None:
    """Returns a memory budget: a fraction of the device, or an amount as it was written; None where none was given.

    Raises:
        UsageError: it can be read as neither.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value <= 1:
        return value
    parse_budget(text)  # a text that cannot be read is refused before anything is started
    return text


def options(given: argparse.Namespace) -> Options:
    """Returns what was asked of the search or the estimate; what was not is not set, and has its default.

    Raises:
        UsageError: the memory can be read neither as an amount nor as a fraction.
    """
    asked = {
        "memory_budget": memory(given.memory),
        "numerics": given.numerics,
        "strategies": names(given.strategies),
        "seed": given.seed,
    }
    return Options.model_validate({name: value for name, value in asked.items() if value is not None})


def overrides(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of the workload that win over what the function gives, where they were asked for."""
    found = {"global_batch_size": given.global_batch, "mode": given.mode, "max_grad_norm": given.max_grad_norm}
    if "max_global_batch" in given:  # `estimate` looks at any size
        found["max_global_batch_size"] = given.max_global_batch
    return found


def names(text: str | None) -> tuple[str, ...] | None:
    """Returns the names in a list that is separated by commas; None where none was given."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def keywords(pairs: list[str]) -> dict[str, Any]:
    """Returns the keyword arguments that `--arg NAME=VALUE` gave; values are read as YAML.

    Raises:
        UsageError: one is no pair, or its value cannot be read.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {pair!r} is no NAME=VALUE; expected for example --arg depth=12.")
        found[name] = _value(pair, value)
    return found


def _value(pair: str, text: str) -> Any:
    """Returns the value of an `--arg`, which has to survive the way to the child as JSON."""
    try:
        value = yaml.safe_load(text)
        json.dumps(value)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, IndexError, KeyError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise UsageError(
            f"--arg {pair!r} has no value that can be read: {problem}. Expected a number, true, false, a text or a "
            "list, in YAML; quote what is a text, as in --arg 'day=\"2026-01-31\"'."
        ) from None
    return value
