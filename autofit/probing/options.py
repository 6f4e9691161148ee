"""Options: a caller's arguments as records, with errors that name the argument."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.probing.workload_facts import check_names

_Record = TypeVar("_Record", bound=BaseModel)


def options_of(
    *,
    strategies: Sequence[str] | str | None = None,
    without: Sequence[str] | str = (),
    pinned: Mapping[str, KnobValue] | None = None,
    **rest: object,
) -> Options:
    """Returns the options of a search; a single name stands for a list of one.

    Raises:
        UsageError: an argument has a value that is not allowed.
        SpaceError: a strategy or a knob is unknown.
    """
    options = record_of(
        Options, strategies=_names(strategies), without=_names(without), pinned=dict(pinned or {}), **rest
    )
    check_names(options)
    return options


def record_of(kind: type[_Record], **values: object) -> _Record:
    """Returns a record of the user's arguments.

    Raises:
        UsageError: an argument has a value that is not allowed.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0] if issubclass(kind, Options) else kind.__name__.lower()
        raise UsageError(f"{name} is {first['input']!r}: {first['msg']}. See autofit.tune for its values.") from None


def _names(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    return (given,) if isinstance(given, str) else None if given is None else tuple(given)
