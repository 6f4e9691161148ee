"""Random operators: tells which calls of torch's operators draw random numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autofit.torch_internals import schema_of


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call of an operator draws random numbers, by torch's tag `nondeterministic_seeded`."""
    return torch.Tag.nondeterministic_seeded in func.tags and not _is_idle(func, args, kwargs)


def _is_idle(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether an operator with a dropout argument (attention, recurrent layers) has a dropout of 0."""
    places = [place for place, argument in enumerate(schema_of(func).arguments) if "dropout" in argument.name]
    if not places:
        return False
    argument = schema_of(func).arguments[places[0]]
    rate = args[places[0]] if places[0] < len(args) else kwargs.get(argument.name, argument.default_value)
    return bool(rate == 0)
