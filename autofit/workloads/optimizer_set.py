"""OptimizerSet: the optimizers of a step that has several, to be read as one optimizer."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer


class OptimizerSet(Optimizer):
    """Several optimizers, such as those of a GAN, with the groups, the state and the gradients of all of them.

    It is never stepped: the user's `update_fn` steps each optimizer by itself.

    Attributes:
        members: the optimizers by the user's names.
    """

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        """Makes the set. The optimizers are not changed; groups and state that they get later are seen too."""
        # torch's constructor is not called: it would group the parameters anew, and keep a state beside the members'.
        self.members = dict(members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # read from the members
        """The groups of all optimizers."""
        return [group for member in self.members.values() for group in member.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]  # read from the members
        """The state of all optimizers, by parameter."""
        return {parameter: kept for member in self.members.values() for parameter, kept in member.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all optimizers."""
        for member in self.members.values():
            member.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> NoReturn:
        """Raises, since only `update_fn` knows when each optimizer is stepped."""
        raise NotImplementedError(f"found a step of {names_of(self)} together; expected that update_fn steps each")


def each_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Returns the optimizers of a step: one, or the members of a set."""
    return tuple(optimizer.members.values()) if isinstance(optimizer, OptimizerSet) else (optimizer,)


def as_given(optimizer: Optimizer) -> Optimizer | dict[str, Optimizer]:
    """Returns the optimizer as the user gave it: one optimizer, or a dict of several."""
    return dict(optimizer.members) if isinstance(optimizer, OptimizerSet) else optimizer


def names_of(optimizer: Optimizer | None) -> str:
    """Returns the class of an optimizer, such as "AdamW", or of each member, as in "d: Adam, g: AdamW"; "" of None."""
    if optimizer is None:
        return ""
    if not isinstance(optimizer, OptimizerSet):
        return type(optimizer).__name__
    return ", ".join(f"{name}: {type(member).__name__}" for name, member in sorted(optimizer.members.items()))


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yields the tensors of an optimizer's state."""
    values = chain.from_iterable(state.values() for state in optimizer.state.values())
    return (value for value in values if isinstance(value, torch.Tensor))
