"""Strategy: a training technique that owns knobs and applies them to a train step."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal

import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.workloads.step import Draft
from autofit.workloads.tree import Batch

Numerics = Literal["exact", "mixed", "any"]
"""What arithmetic a search may use: as the user has it; also reduced precision; also what changes the result."""


class Phase(IntEnum):
    """When a strategy is applied, first to last. Two strategies of one phase do not depend on their order."""

    LAYOUT = 1  # where and how parameters lie in memory
    MODULES = 2  # what a module's forward does
    ARITHMETIC = 3  # the context that forward and backward run in
    OPTIMIZER = 4
    BATCHING = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """What a strategy looks at to say which knobs it offers.

    Attributes:
        model: the user's model, on its device; not to be changed.
        batch: one small batch of the user's data.
        optimizer: the optimizer that will be used; None in inference.
        device_type: "cpu", "cuda", ...
        capabilities: names from `autofit.devices.base.Capability`.
        numerics: what arithmetic the user allows.
        training: False in inference.
        micro_batch_size: the user's own.
        accumulation_steps: the user's own.
        global_batch_size: samples per step to keep exactly; None when the batch is free.
        max_global_batch_size: samples per step at most where the batch is free, as the user says; None: a share of the
            data set.
        dataset_size: samples in the data set; None when unknown.
        resizable: whether batches of other sizes than the user's can be made.
        cut_from: size of the batches that others are cut from and never joined from: a size that does not divide it
            leaves smaller pieces behind; None where batches of any size can be made.
    """

    model: nn.Module
    batch: Batch
    optimizer: torch.optim.Optimizer | None
    device_type: str
    capabilities: frozenset[str]
    numerics: Numerics
    training: bool
    micro_batch_size: int
    accumulation_steps: int = 1
    global_batch_size: int | None = None
    max_global_batch_size: int | None = None
    dataset_size: int | None = None
    resizable: bool = True
    cut_from: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What a strategy brings to a search: its knobs, and what it leaves out with the reasons."""

    knobs: tuple[Knob, ...] = ()
    refused: tuple[Refusal, ...] = ()


class Strategy(ABC):
    """A training technique.

    `offer` and `conflict` are called once per search, in the process that holds the model. `apply` is called by
    `autofit.prepare` for each step that is built: for a probe, for a gate, and for the user's training.

    Attributes:
        name: the name that `tune(strategies=[...])` and reports use.
        phase: when it is applied.
        owns: names of the knobs that it may offer.
        gated: whether each value other than the default must first pass the gradient gate on the user's batch.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase]
    owns: ClassVar[tuple[str, ...]]
    gated: ClassVar[bool] = False

    @abstractmethod
    def offer(self, facts: Facts) -> Offer:
        """Returns the knobs that this strategy has on this workload, and what it refuses with the reason."""

    @abstractmethod
    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Changes `draft` (and its model and optimizer) as `plan` says until the context is left.

        A plan that does not name a knob of this strategy leaves the draft as it is. Leaving the context puts back
        all but the trained values.

        Raises:
            SpaceError: the plan asks for something that this model or device does not have.
        """

    def conflict(self, plan: Plan) -> str | None:
        """Returns why the values of this strategy cannot go with others in `plan`, or None."""
        return None

    def refuse(self, reason: str) -> Offer:
        """Returns an offer without knobs, for the given reason."""
        return Offer(refused=(Refusal(name=self.name, reason=reason),))


def unknown_value(knob: str, value: object, expected: str) -> SpaceError:
    """Returns the error for a plan whose knob has a value that this model or device does not have."""
    return SpaceError(f"{knob}={value!r} cannot be applied here; expected {expected}. Tune again for this model.")
