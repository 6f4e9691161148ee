"""Activation offload: keeps what the backward pass needs in main memory instead of on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.strategies.base import Facts, Offer, Phase, Strategy, is_on, unknown_value
from autofit.strategies.host_store import HOST_SHARE, HostStore
from autofit.strategies.undo import Undo
from autofit.workloads.loss import Compute
from autofit.workloads.step import Draft
from autofit.workloads.tree import Batch

KNOB = "activation_offload"
OWN_MEMORY = "own_memory"
"""Capability of a device whose memory is not the machine's main memory."""
SMALLEST_SHARE = 0.05
"""Minimum size of main memory for activations, as a share of the device's memory budget. Less cannot free much."""


class ActivationOffload(Strategy):
    """Copies the tensors that autograd saves in forward to main memory, and back when backward needs them.

    The values do not change. Parameters, buffers, the batch and tensors under 1 KiB stay on the device. The
    copies to pinned main memory run on a second stream, beside the forward pass. The copies back run on the stream of
    the backward pass, which waits for them. None of this has been run on a physical accelerator yet.
    """

    name = "activation_offload"
    about = "keeps activations in main memory until the backward pass needs them"
    cost = "copies between the device and main memory"
    effect = "exact"
    phase = Phase.ARITHMETIC
    owns = (KNOB,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob for a device with its own memory, if the machine has main memory to spare."""
        if not facts.training:
            return self.refuse("inference has no backward pass and keeps no activations")
        if OWN_MEMORY not in facts.capabilities:
            return self.refuse(
                f"this {facts.device_type} device computes in main memory, where activations are already", "device"
            )
        if (reason := _too_little_memory(facts)) is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether activations wait in main memory for the backward pass",
            # A step that moves what it computes is often bound by the bus (reference/strategy_tuners.md 5: 10 to 50 %).
            expected=(1.0, 0.7),
            # What one layer computes with stays on the device, and so do its temporary tensors.
            growth=(1.0, 0.25),
        )
        return Offer((knob,))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Makes each forward pass of the draft offload what it saves, until the context is left."""
        if not is_on(plan, KNOB):
            yield
            return
        if draft.optimizer is None:
            raise unknown_value(KNOB, True, "False, since inference keeps no activations")
        with Undo() as undo:
            undo.callback(setattr, draft, "loss", draft.loss)
            draft.loss = replace(draft.loss, compute=_offloading(draft.loss.compute, draft))
            yield


def _too_little_memory(facts: Facts) -> str | None:
    """Returns why main memory is too small to be of use, or None."""
    free, budget = facts.host_memory_bytes, facts.memory_budget_bytes
    if free is None or budget is None or HOST_SHARE * free >= SMALLEST_SHARE * budget:
        return None
    return (
        f"{format_bytes(int(HOST_SHARE * free))} of main memory can be used for activations, less than "
        f"{SMALLEST_SHARE:.0%} of the memory budget of {format_bytes(budget)}"
    )


def _offloading(compute: Compute, draft: Draft) -> Compute:
    """Returns `compute` with its saved tensors in main memory."""
    store = HostStore(draft.device, draft.host_memory_bytes)

    def offloading(model: nn.Module, batch: Batch) -> torch.Tensor:
        with store.saving(model, batch):
            return compute(model, batch)

    return offloading
