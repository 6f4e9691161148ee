"""Activation checkpointing: keeps only the inputs of a block and recomputes the block in the backward pass."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.checkpointable import Checkpointable, is_checkpointed, owners_of
from autofit.strategies.user_checkpointing import UserCheckpointing
from autofit.workloads.step import Draft

CHECKPOINTED_BLOCKS = "checkpointed_blocks"
AS_THE_USER = "default"
"""Value that leaves a model as it is that the user has made checkpoint."""


class Checkpointing(Strategy):
    """Checkpoints the first k of the model's n repeated blocks, which trades time for memory.

    Gradients are the same as without checkpointing, up to rounding: torch's random state is replayed, and buffers
    (BatchNorm statistics, spectral norm vectors) are updated once. Other state of a block is not replayed: attributes,
    Python's and numpy's random state, parameters that forward writes.

    If the model has its own checkpointing method (transformers), that method is used, because it knows what else must
    change, such as the key-value cache. If the user has switched checkpointing on, that is the default, and it is
    switched off for every number of blocks, 0 included.
    """

    name = "checkpointing"
    about = "keeps only the inputs of some blocks and recomputes the blocks in backward"
    cost = "up to a third more time"
    effect = "exact"
    phase = Phase.MODULES
    owns = (CHECKPOINTED_BLOCKS,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `checkpointed_blocks`: 0, or a quarter, half, three quarters or all of the blocks."""
        if not facts.training:
            return self.refuse("inference has no backward pass and keeps no activations that could be freed")
        users = _users(facts.model)
        reason = _refusal(facts.model, users)
        if reason is not None:
            return self.refuse(reason)
        target = Checkpointable(facts.model)
        if users.switches:
            return Offer(knobs=(_knob_beside(users, target),))
        if len(target.counts) == 1:
            return self.refuse(
                "found no repeated blocks; expected two or more modules of one class under one parent that have "
                "children and parameters"
            )
        return Offer(knobs=(_knob(target),))

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Checkpoints the first blocks of `draft.model`. Accepts any number up to the number of blocks.

        Raises:
            SpaceError: the model has fewer blocks, can only checkpoint all of them, checkpoints in a way that cannot
                be switched off, or is compiled.
        """
        count = plan.values.get(CHECKPOINTED_BLOCKS, AS_THE_USER)
        if count == AS_THE_USER:
            return nullcontext()
        users = _users(draft.model)
        if type(count) is int and count == 0 and not users.switches:
            return nullcontext()
        reason = _refusal(draft.model, users)
        if reason is not None:
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"{AS_THE_USER if users.switches else 0}, since {reason}")
        target = Checkpointable(draft.model)
        if type(count) is not int or count not in target.counts:
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"one of {', '.join(map(str, target.counts))}")
        return _replaced(users, target, count)


def _knob(target: Checkpointable) -> Knob:
    """Returns the knob of a model that does not checkpoint."""
    most = target.counts[-1]
    values, between = _quarters(target), len(target.counts) > 2
    return Knob(
        name=CHECKPOINTED_BLOCKS,
        values=values,
        default=0,
        about=f"number of blocks, of {most} and from the first on, that are recomputed in backward to save memory",
        expected=tuple(1 / _time(count / most) for count in values),
        growth=tuple(_memory(count / most) for count in values),
        trades_memory=Trade(technique=Checkpointing.name, counted="blocks to checkpoint", between=between),
    )


def _knob_beside(users: UserCheckpointing, target: Checkpointable) -> Knob:
    """Returns the knob of a model that checkpoints: as the user has it, or numbers of blocks, except the user's."""
    most = max(target.counts[-1], 1)
    switched_on = sum(map(users.within, target.blocks)) or most
    counts = tuple(count for count in _quarters(target) if count != switched_on)
    return Knob(
        name=CHECKPOINTED_BLOCKS,
        values=(AS_THE_USER, *counts),
        default=AS_THE_USER,
        about="number of blocks that are recomputed in backward to save memory; the default is your own checkpointing",
        expected=(1.0, *(_time(switched_on / most) / _time(count / most) for count in counts)),
        growth=(1.0, *(_memory(count / most) / _memory(switched_on / most) for count in counts)),
    )


def _quarters(target: Checkpointable) -> tuple[int, ...]:
    most = target.counts[-1]
    return tuple(sorted({(most * quarters + 2) // 4 for quarters in range(5)} & set(target.counts)))


def _time(share: float) -> float:
    """Returns the time of a step with this share of the blocks checkpointed, relative to none.

    A checkpointed block runs forward twice, and a forward pass is about a third of forward and backward.
    """
    return 1 + share / 3


def _memory(share: float) -> float:
    """Returns the memory per sample with this share of the blocks checkpointed, relative to none.

    Only the input of a checkpointed block is kept. The rest of the model keeps its activations.
    """
    return 1 - 0.75 * share


@contextmanager
def _replaced(users: UserCheckpointing, target: Checkpointable, count: int) -> Iterator[None]:
    """Switches the user's checkpointing off and checkpoints the first `count` blocks."""
    with users.off(), target.checkpointed(count) if count else nullcontext():
        yield


def _users(model: nn.Module) -> UserCheckpointing:
    return UserCheckpointing.of(model, owners_of(model))


def _refusal(model: nn.Module, users: UserCheckpointing) -> str | None:
    """Returns why the model's blocks must not be changed, or None."""
    if any(map(is_checkpointed, model.modules())):
        return "the model already uses checkpointing of a train step that is still open; close that step first"
    if users.reason:
        return f"the model already uses checkpointing, which is not changed: {users.reason}"
    if any(map(_is_compiled, model.modules())):
        return "the model is compiled, and torch.compile cannot trace this strategy; pass the model uncompiled"
    return None


def _is_compiled(module: nn.Module) -> bool:
    # By name: importing torch._dynamo takes seconds.
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
