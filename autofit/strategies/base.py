"""Strategy: a training technique that owns knobs and applies them to a train step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Literal

import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan, same_value
from autofit.core.space import Effect, Refusal, StrategyRecord
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.step import Draft
from autofit.workloads.tree import Batch
from autofit.workloads.update import WHOLE

Numerics = Literal["exact", "mixed", "any"]
"""Arithmetic that a search may use: only the user's, also reduced precision, or also techniques that change results."""


Watch = Callable[[nn.Module], AbstractContextManager[None]]
"""Returns the context in which a step of a model is watched."""


class Phase(IntEnum):
    """Order in which strategies are applied, first to last. Within a phase the order does not matter."""

    MEMORY_FORMAT = 1  # strides of parameters
    MODULES = 2  # what a module's forward computes
    ARITHMETIC = 3  # the context that forward and backward run in
    OPTIMIZER = 4
    RANKS = 5  # what of the model, its gradients and its optimizer each rank has
    BATCHING = 6
    COMPILATION = 7  # of whatever the other strategies made of the modules


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a model's forward pass of one sample: one call of a block, or what runs between two of them.

    Attributes:
        block: number of the block; None between blocks.
        saved_bytes: bytes that the part is the first to keep for the backward pass.
        input_bytes: bytes of the block's inputs that no earlier part keeps.
        flops: operations of the block's products; 0 between blocks, as all that follows.
        traffic_bytes: operands read, except weights, and results written by its operators.
        operators: number of its operators that compute or copy.
        marked_bytes: results of the operators that were asked for.
        marked_flops: operations of the operators that were asked for.
    """

    block: int | None
    saved_bytes: int = 0
    input_bytes: int = 0
    flops: int = 0
    traffic_bytes: int = 0
    operators: int = 0
    marked_bytes: int = 0
    marked_flops: int = 0


SpanProfile = Callable[[Plan, Sequence[nn.Module], Callable[..., bool]], Sequence[Span]]
"""Runs one small step of a plan, and returns the parts of its forward pass, in order; () if it could not be run.

Its arguments are the plan, blocks of the user's model, none inside another, and what tells of an operator, given with
its arguments, whether it is asked for. Everything that it changes is restored."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from which a strategy decides which knobs it offers.

    Attributes:
        model: the user's model, on its device. It must not be changed.
        batch: one small batch of the user's data.
        optimizer: the optimizer of the training; None in inference.
        device_type: "cpu", "cuda", ...
        capabilities: names from `autofit.devices.base.Capability`.
        numerics: arithmetic that the user allows.
        training: False in inference.
        micro_batch_size: micro batch size of the baseline.
        accumulation_steps: accumulation steps of the baseline.
        global_batch_size: samples per optimizer step to keep exactly; None if the batch is free.
        max_global_batch_size: the user's maximum number of samples per optimizer step if the batch is free; None uses a
            share of the data set.
        dataset_size: samples in the data set; None if unknown.
        resizable: whether batches of other sizes than the baseline's can be made.
        varies: whether batches differ in shape within a training.
        cut_from: size of the batches from which smaller ones are cut. A size that does not divide it would leave a
            smaller remainder. None if batches of any size can be made.
        max_grad_norm: L2 norm to which the training clips gradients; None if it does not clip.
        memory_budget_bytes: memory that a plan may use on the device; None if unknown.
        host_memory_bytes: available main memory of the device's machine; None if unknown.
        profile: runs one small step to see what its parts keep and compute; None if no step can be run.
        source: makes the user's batches. None if there are no more than `batch`.
        own_process: whether plans run in a process that the search can replace with a fresh one.
        on_host: whether the device is the host itself, and no accelerator.
        ranks: number of processes that train together, each on a device of its own.
        layout: the only layout to consider, by name; None for all.
        pinned: value by knob; only plans with these values are searched.
        update_fn: whether the user's `update_fn` does the whole step, so that its inside cannot be changed.
        rehearse: runs the forward and backward pass of the user's step inside `watch(model)`, on a copy of the model
            without data, and raises `Untraceable` if it cannot run so. Conditions that depend on data are true, or
            false with `conditions=False`; returns whether there are some. None if no step can be run.
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
    varies: bool = False
    cut_from: int | None = None
    max_grad_norm: float | None = None
    memory_budget_bytes: int | None = None
    host_memory_bytes: int | None = None
    profile: SpanProfile | None = None
    source: BatchSource | None = None
    rehearse: Callable[..., bool] | None = None
    update_fn: bool = False
    own_process: bool = False
    on_host: bool = True
    ranks: int = 1
    layout: str | None = None
    pinned: Mapping[str, KnobValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """The knobs that a strategy adds to a search, and the values it leaves out, with reasons.

    Attributes:
        knobs: the knobs that it adds.
        refused: the values that it leaves out.
        batch_limit: see `autofit.core.space.SpaceFacts`.
        parts: see `autofit.core.space.StrategyRecord`.
        objection: as `Strategy.conflict`, for what depends on the workload too; None if nothing does.
    """

    knobs: tuple[Knob, ...] = ()
    refused: tuple[Refusal, ...] = ()
    batch_limit: str = ""
    parts: Mapping[str, int] = field(default_factory=dict)
    objection: Callable[[Plan], str | None] | None = None


class Strategy(ABC):
    """A training technique.

    A search calls `offered` once and `conflict` for some plans, in the process that holds the model. `autofit.prepare`
    calls `apply` for each step that it builds: for a probe, for a gate, and for the user's training. It calls `batches`
    before a probe makes its batches, and before the loader of the user's training is made.

    Attributes:
        name: name of the strategy in `tune(strategies=[...])` and in reports.
        about: what it does, in a phrase without a full stop.
        cost: what it costs, in a phrase; "nothing" if it has no cost.
        words: values in words for reports, by "knob=value", where "VALUE KNOB" does not say it well.
        effect: what it does to the values that are trained. A strategy of another package that does not say may do
            anything.
        phase: when the strategy is applied.
        owns: the knobs that it may offer, each with the value that changes nothing; None: every value is applied.
        gated: whether each value except the default must first pass the gradient gate on the user's batch.
        gated_in_proof: whether code is compiled for a batch, so that the gate compares a plan on the micro batch for
            which its proof has compiled it, and with the same plan without this strategy if the baseline differs.
        fits_update_fn: whether it can be applied to a step that the user's `update_fn` does as a whole: it acts on
            modules, on each optimizer or on the whole call, and not on the loss, the backward pass or the gradients.
        same_memory: whether all values of its knobs have the memory per sample of the default, so that an estimate of
            memory leaves the strategy out. Its knobs say so too (`Knob.same_memory`).
        for_ranks: whether it divides a training among ranks. A search on one rank does not mention it.
        unsearched: value by knob on several ranks, where the technique is not to be searched.
        not_on_ranks: why it cannot be applied on several ranks; "" if it can.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    words: ClassVar[Mapping[str, str]] = {}
    effect: ClassVar[Effect] = "changes the result"
    phase: ClassVar[Phase]
    owns: ClassVar[Mapping[str, KnobValue | None]]
    gated: ClassVar[bool] = False
    gated_in_proof: ClassVar[bool] = False
    same_memory: ClassVar[bool] = False
    for_ranks: ClassVar[bool] = False
    unsearched: ClassVar[Mapping[str, KnobValue]] = {}
    not_on_ranks: ClassVar[str] = ""
    fits_update_fn: ClassVar[bool] = False

    def offered(self, facts: Facts) -> Offer:
        """Returns the offer for a workload, or the refusal of a technique that does not fit the step or its ranks."""
        if facts.ranks > 1 and self.not_on_ranks:
            return self.refuse(self.not_on_ranks)
        if facts.update_fn and not self.fits_update_fn:
            return self.refuse(f"{WHOLE}, and this would change its inside")
        return self.offer(facts)

    @abstractmethod
    def offer(self, facts: Facts) -> Offer:
        """Returns the knobs of this strategy on this workload, and the values it refuses, with reasons."""

    def acts(self, plan: Plan) -> bool:
        """Returns whether `plan` has a value of this strategy's knobs that changes anything.

        Raises:
            SpaceError: a knob that is False or True has another value.
        """
        found = {name: plan.values.get(name, idle) for name, idle in self.owns.items()}
        for name, value in found.items():
            if self.owns[name] is False and type(value) is not bool:
                raise unknown_value(name, value, "False or True")
        return any(not same_value(value, self.owns[name]) for name, value in found.items())

    @abstractmethod
    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Applies `plan` to `draft`, its model and its optimizer, until the context is left.

        Called only for a plan on which the strategy acts. Leaving the context restores everything except the trained
        values.

        Raises:
            SpaceError: this model or device does not support the plan.
        """

    def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
        """Returns what makes the batches of `plan`: `source`, or another that is made from it and leaves it unchanged.

        Called only for a plan on which the strategy acts.

        Raises:
            SpaceError: this loader does not support the plan.
        """
        return source

    def gate_batch(self, facts: Facts) -> Counted | None:
        """Returns the batch on which the gate compares this strategy's gradient, which may differ by rounding alone.

        None, as here, if any batch will do, and the gradient may differ as much as one in reduced precision. A gated
        strategy that changes batches must return one.

        Raises:
            WorkloadError: no batch would show what the strategy changes.
        """
        return None

    def objection(self, facts: Facts, batch: Counted) -> str:
        """Returns what a run of the model shows against this strategy; "" if nothing.

        The gate asks before it compares gradients on the batch of `gate_batch`, and restores what the run changes.
        """
        return ""

    def conflict(self, plan: Plan) -> str | None:
        """Returns why the values of this strategy conflict with others in `plan`, or None.

        The answer depends on the knob values of the plan alone. A search asks about few plans: it varies only the knobs
        whose values were read (`plan.values.get(name)`), so do not read more of them than matter.
        """
        return None

    def heaviest_rank(self, plan: Plan, optimizer: torch.optim.Optimizer, count: int) -> int:
        """Returns which of `count` ranks needs the most memory under `plan`. A trace of one rank is one of this rank.

        Called only for a plan on which the strategy acts.
        """
        return 0

    def rounds(self, plan: Plan) -> bool:
        """Returns whether what divides a training among ranks under `plan` also reduces its precision.

        The gradient of all ranks may then differ as much as one in reduced precision.
        """
        return False

    def needs_rows(self, plan: Plan) -> bool:
        """Returns whether the ranks of a plan also have to be in rows, see `Ranks.in_rows`."""
        return False

    def to_record(self, offer: Offer) -> StrategyRecord:
        """Returns what this strategy does, costs and changes, for the workload of an offer."""
        return StrategyRecord(
            name=self.name,
            knobs=tuple(self.owns),
            about=self.about,
            cost=self.cost,
            effect=self.effect,
            words=dict(self.words),
            parts=dict(offer.parts),
        )

    def untraceable(self, plan: Plan) -> str | None:
        """Returns why a trace on fake tensors cannot show the memory of `plan`, or None."""
        return None

    def refuse(self, reason: str, origin: Literal["", "device"] = "") -> Offer:
        """Returns an offer without knobs, with the reason. See `autofit.core.space.Refusal` for the arguments."""
        return Offer(refused=(Refusal(name=self.name, reason=reason, origin=origin),))


def unknown_value(knob: str, value: object, expected: str) -> SpaceError:
    """Returns the error for a knob value that this model or device does not support."""
    return SpaceError(f"{knob}={value!r} cannot be applied here; expected {expected}. Tune again for this model.")
