"""Where an object was found, and the name of the path to it."""

from dataclasses import dataclass

import torch

from autofit.guard.digest import SIMPLE


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an object was found.

    Attributes:
        of_user: whether it is held by the user's code or object. Only then is it named if it cannot be followed.
        data: whether it is below a data set, where size limits apply.
        held: whether it was reached through a function or a plain object, and is not part of the model, optimizer or
            loader.
    """

    of_user: bool = True
    data: bool = False
    held: bool = False


class Labels:
    """Names the entries of objects and containers so that the user can find them."""

    def __init__(self) -> None:
        self._position: dict[int, int] = {}

    def number(self, optimizer: torch.optim.Optimizer) -> None:
        """Numbers the parameters as the optimizer's `state_dict` does, to name its state entries."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._position.update({id(p): index for index, p in enumerate(parameters)})

    def of(self, name: str, key: object) -> str:
        """Names an entry: by attribute, by index, or by a parameter's number in its optimizer."""
        if isinstance(key, str):
            return f"{name}.{key}"
        if isinstance(key, torch.Tensor):
            return f"{name}[{self._position.get(id(key), '?')}]"
        return f"{name}[{key!r}]" if isinstance(key, SIMPLE) else f"{name}[{type(key).__qualname__}]"
