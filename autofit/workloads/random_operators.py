"""Random operators: tells which calls of torch's operators draw random numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autofit.torch_internals import schema_of


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call of an operator draws random numbers, by torch's tag `nondeterministic_seeded`.

    An operator with a dropout argument (attention, recurrent layers) draws none if that is 0.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(schema_of(func).arguments):
        if "dropout" in argument.name:
            rate = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(rate != 0)
    return True
