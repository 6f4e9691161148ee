"""Padding multiple: the length of batches as a multiple of 8, for which tensor cores have their fastest kernels."""

from collections.abc import Iterator
from contextlib import contextmanager

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.workloads.batches import BatchSource
from autofit.workloads.step import Draft

KNOB = "padding_multiple"
NO_MULTIPLE, MULTIPLE = 1, 8
"""The values of the knob: no padding beyond the user's, and the multiple of 16-bit operands (the documentation of
`transformers` recommends 8 for tensor cores)."""
TENSOR_CORES = "tf32"
"""The capability of devices with tensor cores. On a CPU the longer batches cost as much as they gain: 0.94x to 1.05x in
steps of an encoder with 61, 117 and 203 tokens (AMD EPYC, fp32 and bf16, torch 2.13)."""


class PaddingMultiple(Strategy):
    """Batches padded to a multiple by the user's collate function, which knows with what.

    A gate compares the gradient with that of the same samples without the padding, so a model that reads padding is
    found. A draft does not change: only its batches do.
    """

    name = "padding_multiple"
    about = "pads the length of each batch to a multiple of 8, for which tensor cores have faster kernels"
    cost = "up to 7 more tokens of padding per sample"
    effect = "rounding"
    phase = Phase.BATCHING
    owns = (KNOB,)
    gated = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if lengths vary, the device has tensor cores, and the collate function can pad."""
        reason = _refusal(facts)
        if reason is not None:
            return self.refuse(reason, "device" if TENSOR_CORES not in facts.capabilities else "")
        about = "multiple to which the length of a batch is padded; 1 adds no padding"
        return Offer((Knob(name=KNOB, values=(NO_MULTIPLE, MULTIPLE), default=NO_MULTIPLE, about=about),))

    def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
        """Returns the source of padded batches.

        Raises:
            SpaceError: the padding of this loader cannot be changed.
        """
        multiple = _multiple(plan)
        if multiple == NO_MULTIPLE:
            return source
        if source.fixed_padding:
            raise SpaceError(
                f"{KNOB}={multiple} cannot be applied: {source.fixed_padding}; expected a DataLoader whose collate "
                "function has the attribute pad_to_multiple_of. Tune again with this loader."
            )
        return source.padded_to(multiple)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Checks the value. The draft does not change."""
        _multiple(plan)
        yield


def _multiple(plan: Plan) -> int:
    value = plan.values.get(KNOB, NO_MULTIPLE)
    if type(value) is not int or value < 1:
        raise unknown_value(KNOB, value, "an integer of at least 1")
    return value


def _refusal(facts: Facts) -> str | None:
    """Returns why batches are not padded further, or None."""
    source = facts.source
    if source is None or not source.varies:
        return "all batches have the same shape"
    if not facts.training:
        return "the outputs of an inference would be padded too"
    if facts.numerics == "exact":
        return "numerics='exact' keeps the arithmetic; numerics='mixed' allows padding, checked by its gradient"
    if TENSOR_CORES not in facts.capabilities:
        return f"this {facts.device_type} device has no tensor cores"
    return source.fixed_padding or None
