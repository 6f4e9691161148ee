"""Linear cross-entropy: computes the loss of a large vocabulary over chunks, without the logits as a whole."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from autofit.core.errors import Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, Watch, unknown_value
from autofit.strategies.blocks import find_blocks, has_compiled_part
from autofit.strategies.deferred_logits import DeferringForward, Usage
from autofit.strategies.layout import divides_parameters
from autofit.strategies.undo import Undo
from autofit.torch_internals import storage_id
from autofit.workloads.step import Draft

KNOB = "linear_cross_entropy"
VALUES = ("default", "chunked")

FEWEST_CLASSES = 1024
"""Minimum number of outputs of a head. Below it, logits are seldom more than the activations of one layer."""
LEAST_SHARE = 0.1
"""Minimum size of the logits, in float32, relative to all that is kept for the backward pass and the logits. With the
other activations recomputed (checkpointing), their share is several times larger."""
COPIES = 3
"""Number of tensors of the size of the logits at the peak of an ordinary loss: the log-probabilities, their gradient,
and the gradient of the logits."""
EXPECTED = 0.95
"""Typical throughput relative to the default. The logits are computed a second time, but not written to memory."""


class LinearCrossEntropy(Strategy):
    """Computes the loss of a language model's head over chunks of rows.

    The head returns deferred logits. If `F.cross_entropy` uses them, the loss and its gradient are computed over
    chunks. If anything else uses them, they are computed as usual, so that every model stays correct. See
    `DeferredLogits`.
    """

    name = "linear_cross_entropy"
    about = "computes the head and the cross-entropy over chunks of tokens, without the logits as a whole"
    cost = "the logits are computed a second time in backward"
    effect = "rounding"
    phase = Phase.MODULES
    owns = {KNOB: "default"}

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `linear_cross_entropy` if the logits are a considerable part of the activations."""
        if not facts.training:
            return self.refuse("inference computes no loss")
        if has_compiled_part(facts.model):
            return self.refuse(
                "the model is compiled, and torch.compile computes the logits; pass the model uncompiled"
            )
        if not _heads(facts.model):
            return self.refuse(
                f"found no head: no linear layer outside repeated blocks has {FEWEST_CLASSES} or more outputs"
            )
        if facts.rehearse is None:
            return self.refuse("the user's step could not be inspected")
        try:
            usage, kept_bytes = _observed(facts.rehearse)
        except Untraceable as error:
            return self.refuse(f"the user's step cannot be run without data: {error.reason} ({error.where})")
        if (reason := _lack_of_gain(usage, kept_bytes)) is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=VALUES,
            default="default",
            about="how the cross-entropy of the head is computed",
            expected=(1.0, EXPECTED),
            growth=(1.0, kept_bytes / (kept_bytes + COPIES * usage.fused_bytes)),
        )
        return Offer(knobs=(knob,))

    def conflict(self, plan: Plan) -> str | None:
        """Returns why it cannot be applied where parameters are divided among ranks, or None."""
        if not self.acts(plan) or (layout := divides_parameters(plan)) is None:
            return None
        return f"not with {layout}: the loss would use the weights of the head, which are divided outside its pass"

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Lets the heads of `draft.model` defer their logits.

        Raises:
            SpaceError: the value is unknown, or the model has no head whose logits could be deferred.
        """
        if (value := plan.values[KNOB]) not in VALUES:
            raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)}")
        heads = _heads(draft.model)
        if not heads or has_compiled_part(draft.model):
            found = "the model is compiled" if heads else f"no linear layer has {FEWEST_CLASSES} or more outputs"
            raise unknown_value(KNOB, value, f"default, since {found}")
        return _deferring(heads, None)


def _observed(rehearse: Callable[[Watch], object]) -> tuple[Usage, int]:
    """Runs the user's step with deferred logits. Returns their use, and the bytes kept for backward, less parameters.

    Raises:
        Untraceable: the step cannot be run without data.
    """
    usage, kept = Usage(), dict[int, torch.UntypedStorage]()

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        known = {storage_id(parameter.untyped_storage()) for parameter in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is torch.strided and (key := storage_id(tensor.untyped_storage())) not in known:
                kept[key] = tensor.untyped_storage()  # held, so that no other storage gets its number
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with _deferring(_heads(model), usage), hooks:
            yield

    rehearse(watch)
    return usage, sum(storage.nbytes() for storage in kept.values())


def _lack_of_gain(usage: Usage, kept_bytes: int) -> str | None:
    """Returns why chunks would save nothing or little, or None."""
    if not usage.fused_bytes:
        if usage.computed_for:
            return (
                f"the logits are used by {usage.computed_for[0]} before the loss, so they are needed as a whole; "
                "expected F.cross_entropy of the output of a linear layer"
            )
        return "no cross-entropy with class indices was found on the output of a linear layer"
    share = usage.fused_bytes / (usage.fused_bytes + kept_bytes)
    if share < LEAST_SHARE:
        return f"the logits are {share:.1%} of the activations; chunks pay from {LEAST_SHARE:.0%} on"
    return None


@contextmanager
def _deferring(heads: tuple[nn.Linear, ...], usage: Usage | None) -> Iterator[None]:
    with Undo() as undo:
        for head in heads:
            undo.replace(vars(head), "forward", DeferringForward(head, usage))
        yield


def _heads(model: nn.Module) -> tuple[nn.Linear, ...]:
    """Returns the linear layers outside repeated blocks that have many outputs and torch's own forward."""
    inside = {part for block in find_blocks(model) for part in block.modules()}
    linear = (module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside)
    ordinary = (each for each in linear if type(each).forward is nn.Linear.forward and "forward" not in vars(each))
    return tuple(each for each in ordinary if each.out_features >= FEWEST_CLASSES)
