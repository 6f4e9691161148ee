"""Activation checkpointing: keeps only the inputs of a block and recomputes the block in the backward pass.

Memory is that of the highest point of the backward pass. When the backward pass reaches a checkpointed block, the block
is recomputed while everything before it is still kept. So the last block frees almost nothing, and of equal blocks the
first are the best.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Span, Strategy, unknown_value
from autofit.strategies.blocks import has_compiled_part
from autofit.strategies.checkpointable import Checkpointable, is_checkpointed
from autofit.strategies.recompute import is_kept, selection_refusal
from autofit.workloads.step import Draft

FLOPS_PER_BYTE = 20.0
"""Operations of products counted as long as one byte of memory traffic. Few on a CPU, more on a GPU: a compromise."""


def cost_of(span: Span) -> float:
    """Returns the time of a part's forward pass in arbitrary units."""
    return span.flops + FLOPS_PER_BYTE * span.traffic_bytes


CHECKPOINTED_BLOCKS = "checkpointed_blocks"
AS_THE_USER = "default"
"""Value that leaves a model as it is that the user has made checkpoint."""
OPERATORS = "recomputed_operators"
ALL, CHEAP = "all", "cheap"

LEAST_FREED = 0.2
"""Minimum share of what a whole block frees that must be freed by recomputing its cheap operators only."""
MOST_REPEATED = 0.5
"""Maximum share of a block's work that its cheap operators may be."""
LEAST_FLOPS = 1e7
"""Minimum operations of products per operator. Looking at each operator takes about 10 microseconds, twice."""

LEAST_SHARE = 0.25
"""Smallest share of the blocks that the knob offers. For it, the expected throughput of cheap operators is exact; for a
larger share it is too low. With the opposite choice, checkpointing a quarter would seem faster than none."""


class Checkpointing(Strategy):
    """Checkpoints k of the model's n repeated blocks, which trades time for memory.

    Which k: the first ones in the order of the modules. Of a checkpointed block, either all operators are recomputed,
    or only the cheap ones (`recompute`).

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
    owns = {CHECKPOINTED_BLOCKS: AS_THE_USER, OPERATORS: ALL}
    fits_update_fn = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `checkpointed_blocks`: 0, or a quarter, half, three quarters or all of the blocks.

        Beside it, what is recomputed of a block, if that matters for this model.
        """
        if not facts.training:
            return self.refuse("inference has no backward pass and keeps no activations that could be freed")
        target = Checkpointable(facts.model)
        reason = _refusal(facts.model, target)
        if reason is not None:
            return self.refuse(reason)
        if len(target.counts) == 1 and not target.switches:
            return self.refuse(
                "found no repeated blocks; expected two or more modules of one class under one parent that have "
                "children and parameters"
            )
        knob = _knob_beside(target) if target.switches else _knob(target)
        parts = {CHECKPOINTED_BLOCKS: target.counts[-1]}
        if not target.blocks:
            return Offer(knobs=(knob,), parts=parts)
        unchanged = Plan(values={CHECKPOINTED_BLOCKS: 0})
        spans = facts.profile(unchanged, target.blocks, is_kept) if facts.profile is not None else ()
        cheap = _lack_of_selection(spans, facts.micro_batch_size)
        cheap = cheap or selection_refusal(facts, target.blocks, spans, all_selectively)
        selection = () if cheap else (_selection(spans),)
        refused = (Refusal(name=f"{OPERATORS}={CHEAP}", reason=cheap),) if cheap else ()
        return Offer(knobs=(knob, *selection), refused=refused, parts=parts)

    def conflict(self, plan: Plan) -> str | None:
        """Returns why only cheap operators of no blocks cannot be recomputed, or None."""
        count = plan.values.get(CHECKPOINTED_BLOCKS, 0)
        if plan.values.get(OPERATORS, ALL) != ALL and count in (0, AS_THE_USER):
            return f"it changes nothing beside {CHECKPOINTED_BLOCKS}={count}; it needs blocks that autofit checkpoints"
        return None

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Checkpoints blocks of `draft.model`. Accepts any number up to the number of blocks.

        Raises:
            SpaceError: the model has fewer or other blocks, can only checkpoint all of them, checkpoints in a way that
                cannot be switched off, or is compiled.
        """
        count = plan.values.get(CHECKPOINTED_BLOCKS, AS_THE_USER)
        operators = plan.values.get(OPERATORS, ALL)
        if operators not in (ALL, CHEAP):
            raise unknown_value(OPERATORS, operators, f"{ALL} or {CHEAP}")
        if count == AS_THE_USER:
            return nullcontext()
        target = Checkpointable(draft.model)
        if type(count) is int and count == 0 and not target.switches:
            return nullcontext()
        reason = _refusal(draft.model, target)
        if reason is not None:
            expected = AS_THE_USER if target.switches else 0
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"{expected}, since {reason}")
        if type(count) is not int or count not in target.counts:
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"one of {', '.join(map(str, target.counts))}")
        return target.checkpointed(range(count), operators == CHEAP)


def _lack_of_selection(spans: Sequence[Span], micro_batch_size: int) -> str:
    """Returns why recomputing only cheap operators cannot pay; "" if it can."""
    blocks = [span for span in spans if span.block is not None]
    whole, freed = _freed(blocks)
    if not blocks or whole <= 0:
        return "no step of this model could be profiled"
    if freed / whole < LEAST_FREED:
        return (
            f"matrix products, convolutions and attention make {1 - freed / whole:.0%} of what the blocks keep; "
            f"at most {1 - LEAST_FREED:.0%} would be worth it"
        )
    if (repeated := _repeated(blocks)) > MOST_REPEATED:
        return (
            f"the other operators are {repeated:.0%} of a block's work; at most {MOST_REPEATED:.0%} would be worth it"
        )
    flops = micro_batch_size * sum(span.flops for span in blocks) / max(sum(span.operators for span in blocks), 1)
    if flops < LEAST_FLOPS:
        return (
            f"the blocks are small: {flops:.1e} operations per operator, at least {LEAST_FLOPS:.0e} are needed to "
            "outweigh the time of looking at each operator"
        )
    return ""


def _selection(spans: Sequence[Span]) -> Knob:
    """Returns the knob that chooses between all operators and the cheap ones."""
    blocks = [span for span in spans if span.block is not None]
    kept = sum(span.saved_bytes for span in spans)
    whole, freed = _freed(blocks)
    return Knob(
        name=OPERATORS,
        values=(ALL, CHEAP),
        default=ALL,
        about="operators of a checkpointed block that are recomputed: all, or not products, convolutions and attention",
        expected=(1.0, _time(LEAST_SHARE) / _time(LEAST_SHARE * _repeated(blocks))),
        growth=(1.0, (2 * kept - freed) / (2 * kept - whole)),
    )


def _freed(blocks: Sequence[Span]) -> tuple[int, int]:
    """Returns the bytes freed by recomputing whole blocks, and by recomputing only their cheap operators."""
    whole = sum(span.saved_bytes - span.input_bytes for span in blocks)
    return whole, sum(max(span.saved_bytes - span.input_bytes - span.marked_bytes, 0) for span in blocks)


def _repeated(blocks: Sequence[Span]) -> float:
    """Returns the share of the blocks' work that is in their cheap operators."""
    return 1 - sum(span.marked_flops for span in blocks) / sum(map(cost_of, blocks))


def _knob(target: Checkpointable) -> Knob:
    """Returns the knob of a model that does not checkpoint."""
    most = target.counts[-1]
    values, between = _quarters(target), len(target.counts) > 2
    return Knob(
        name=CHECKPOINTED_BLOCKS,
        values=values,
        default=0,
        about=f"number of blocks, of {most}, that are recomputed in backward to save memory",
        expected=tuple(1 / _time(count / most) for count in values),
        growth=tuple(_memory(count / most) for count in values),
        trades_memory=Trade(technique=Checkpointing.name, counted="blocks to checkpoint", between=between),
    )


def _knob_beside(target: Checkpointable) -> Knob:
    """Returns the knob of a model that checkpoints: as the user has it, or numbers of blocks, except the user's."""
    most = max(target.counts[-1], 1)
    switched = {switch.module for switch in target.switches}
    switched_on = sum(not switched.isdisjoint(block.modules()) for block in target.blocks) or most
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


def all_selectively(model: nn.Module) -> AbstractContextManager[None]:
    """Returns a context in which all blocks of a model are checkpointed, with cheap operators recomputed only."""
    target = Checkpointable(model)
    return target.checkpointed(range(len(target.blocks)), selective=True)


def _refusal(model: nn.Module, target: Checkpointable) -> str | None:
    """Returns why the model's blocks must not be changed, or None."""
    if any(map(is_checkpointed, model.modules())):
        return "the model already uses checkpointing of a train step that is still open; close that step first"
    if target.fixed:
        return f"the model already uses checkpointing, which is not changed: {target.fixed}"
    if has_compiled_part(model):
        return "the model is compiled, and torch.compile cannot trace this strategy; pass the model uncompiled"
    return None
