"""The user's arguments as records, refused with a message if a value is not allowed."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.objective import Objective

_Record = TypeVar("_Record", bound=BaseModel)


def options_of(
    memory_budget: object, numerics: str, strategies: Sequence[str] | None, seed: int, **rest: bool
) -> Options:
    """Returns the options of a bench; the arguments are those of `Options`, and one name may stand for a sequence.

    Raises:
        UsageError: an argument has a value that is not allowed.
    """
    names = (strategies,) if isinstance(strategies, str) else strategies
    return record_of(
        Options,
        memory_budget=memory_budget,
        numerics=numerics,
        strategies=None if names is None else tuple(names),
        seed=seed,
        **rest,
    )


def record_of(kind: type[_Record], **values: object) -> _Record:
    """Returns a record of the user's arguments.

    Raises:
        UsageError: an argument has a value that is not allowed.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "objective" if kind is Objective else first["loc"][0]
        raise UsageError(f"{name} is {first['input']!r}: {first['msg']}. See autofit.tune for its values.") from None
