"""Converts command line arguments to values: memory, lists of names, keyword arguments."""

import argparse
import json
from typing import Any

import yaml

from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.core.units import parse_budget


def memory(text: str | None) -> float | str | None:
    """Returns a memory budget: a fraction of the device, or an amount as the user wrote it; None if none was given.

    Raises:
        UsageError: the text is neither an amount nor a fraction.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value <= 1:
        return value
    parse_budget(text)  # raises before anything starts if the text cannot be read
    return text


def options(given: argparse.Namespace, **others: Any) -> Options:
    """Returns the options of the search or the estimate, and others. Those that were not given keep their defaults.

    Raises:
        UsageError: a value cannot be read.
    """
    return Options.model_validate(asked(given, **others))


def asked(given: argparse.Namespace, **others: Any) -> dict[str, Any]:
    """Returns the arguments of `autofit.tune` that commands have in common, and others: those that were given.

    Raises:
        UsageError: a value cannot be read.
    """
    found = {
        "memory_budget": memory(given.memory),
        "numerics": given.numerics,
        "strategies": names(given.strategies),
        "without": names(given.without),
        "pinned": pins(getattr(given, "pinned", [])) or None,
        "seed": given.seed,
        **others,
    }
    return {name: value for name, value in found.items() if value is not None}


def overrides(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields that override those of the function's workload; None for those that were not given."""
    found = {"global_batch_size": given.global_batch, "mode": given.mode, "max_grad_norm": given.max_grad_norm}
    if "max_global_batch" in given:  # `estimate` has no such limit
        found["max_global_batch_size"] = given.max_global_batch
    return found


def names(text: str | None) -> tuple[str, ...] | None:
    """Returns the names in a comma-separated list; None if none was given."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def keywords(pairs: list[str]) -> dict[str, Any]:
    """Returns the keyword arguments given by `--arg NAME=VALUE`. Values are read as YAML.

    Raises:
        UsageError: a pair has another form, or its value cannot be read.
    """
    return _assigned("--arg", pairs, "depth=12")


def pins(pairs: list[str]) -> dict[str, KnobValue]:
    """Returns the values given by `--set KNOB=VALUE`. Values are read as YAML.

    Raises:
        UsageError: a pair has another form, its value is none that a knob can have, or a knob has two values.
    """
    found = _assigned("--set", pairs, "precision=bf16")
    for name, value in found.items():
        if not isinstance(value, bool | int | str):
            raise UsageError(
                f"--set {name}={value} has no value that a knob can have. Expected a name, a number or true."
            )
        given = {pair.partition("=")[2] for pair in pairs if pair.partition("=")[0] == name}
        if len(given) > 1:
            raise UsageError(f"--set {name} has several values: {', '.join(sorted(given))}. Give it once.")
    return found


def _assigned(flag: str, pairs: list[str], example: str) -> dict[str, Any]:
    """Returns the values by name. They must be representable as JSON, because they are sent to the child process."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{flag} {pair!r} is not of the form NAME=VALUE. Write, for example, {flag} {example}.")
        try:
            found[name] = yaml.safe_load(text)
            json.dumps(found[name])
        except (yaml.YAMLError, TypeError, ValueError, AttributeError, IndexError, KeyError, RecursionError) as error:
            problem = str(error).partition("\n")[0]
            raise UsageError(
                f"the value of {flag} {pair!r} cannot be read: {problem}. Expected a number, true, false, a string or "
                "a list, in YAML. Quote a string that YAML reads as something else, as in --arg 'day=\"2026-01-31\"'."
            ) from None
    return found
