"""Linear cross-entropy: computes the loss of a large vocabulary over chunks, without the logits as a whole."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from autofit.core.errors import Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import find_blocks, has_compiled_part
from autofit.strategies.deferred_logits import DeferringForward, Usage
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
    owns = (KNOB,)

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
        seen = _Observation()
        try:
            facts.rehearse(seen.watch)
        except Untraceable as error:
            return self.refuse(f"the user's step cannot be run without data: {error.reason} ({error.where})")
        reason = seen.refusal()
        if reason is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=VALUES,
            default="default",
            about="how the cross-entropy of the head is computed",
            expected=(1.0, EXPECTED),
            growth=(1.0, seen.kept_bytes / (seen.kept_bytes + COPIES * seen.usage.fused_bytes)),
        )
        return Offer(knobs=(knob,))

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Lets the heads of `draft.model` defer their logits.

        Raises:
            SpaceError: the value is unknown, or the model has no head whose logits could be deferred.
        """
        value = plan.values.get(KNOB, "default")
        if value == "default":
            return nullcontext()
        if value not in VALUES:
            raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)}")
        heads = _heads(draft.model)
        if not heads or has_compiled_part(draft.model):
            found = "the model is compiled" if heads else f"no linear layer has {FEWEST_CLASSES} or more outputs"
            raise unknown_value(KNOB, value, f"default, since {found}")
        return _deferring(heads, None)


class _Observation:
    """What one step of the user shows with deferred logits.

    Attributes:
        usage: what became of the logits.
        kept_bytes: bytes kept for the backward pass, without parameters.
    """

    def __init__(self) -> None:
        self.usage, self.kept_bytes = Usage(), 0
        self._storages: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Observes a step of `model`."""
        known = {storage_id(parameter.untyped_storage()) for parameter in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if (key := storage_id(storage)) not in known and key not in self._storages:
                    self._storages[key] = storage
                    self.kept_bytes += storage.nbytes()
            return tensor

        try:
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with _deferring(_heads(model), self.usage), hooks:
                yield
        finally:
            self._storages.clear()

    def refusal(self) -> str | None:
        """Returns why chunks would save nothing or little, or None."""
        usage = self.usage
        if not usage.fused_bytes:
            if usage.computed_for:
                return (
                    f"the logits are used by {usage.computed_for[0]} before the loss, so they are needed as a whole; "
                    "expected F.cross_entropy of the output of a linear layer"
                )
            return "no cross-entropy with class indices was found on the output of a linear layer"
        share = usage.fused_bytes / (usage.fused_bytes + self.kept_bytes)
        if share < LEAST_SHARE:
            return f"the logits are {share:.1%} of the activations; chunks pay from {LEAST_SHARE:.0%} on"
        return None


@contextmanager
def _deferring(heads: tuple[nn.Linear, ...], usage: Usage | None) -> Iterator[None]:
    with Undo() as undo:
        for head in heads:
            undo.callback(vars(head).pop, "forward", None)
            vars(head)["forward"] = DeferringForward(head, usage)
        yield


def _heads(model: nn.Module) -> tuple[nn.Linear, ...]:
    """Returns the linear layers outside repeated blocks that have many outputs and torch's own forward."""
    inside = {part for block in find_blocks(model) for part in block.modules()}
    linear = (module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside)
    return tuple(module for module in linear if module.out_features >= FEWEST_CLASSES and _is_ordinary(module))


def _is_ordinary(module: nn.Linear) -> bool:
    return type(module).forward is nn.Linear.forward and "forward" not in vars(module)
