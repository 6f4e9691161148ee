"""Why accumulation changes the gradient of a model, in words. A measurement separates each cause from the others.

The causes are those of reference/reliability.md section 7. The order matters: the first that is found is named.

* Batch normalisation: with its layers in evaluation mode, the difference vanishes.
* Something that only training does: in evaluation mode, the difference vanishes.
* A mean over entries that the batch does not show: the gradient is a weighted sum of the samples' gradients.
* A module: its output for a sample depends on the other samples of the batch.
* The loss: no output depends on other samples, but the loss of the batch is not the mean of its parts'. The mean is
  lower where samples are compared with each other (alone, a sample has none to differ from), and higher where a convex
  function of a mean over the batch is penalised, as in balance terms of routed experts.

A sum over samples and a mean over entries of the batch are not among them: the gate weights micro batches by these.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autofit.core.plan import Plan
from autofit.core.units import format_names
from autofit.probing.survey.gradients import Gradients, difference
from autofit.probing.survey.module_modes import Modes, all_evaluating, dropout_off, norms_evaluating
from autofit.probing.survey.two_sample_statistic import sketch
from autofit.probing.watchdog import Overdue
from autofit.workloads.counted_batches import Counted
from autofit.workloads.step import StepBatch
from autofit.workloads.tree import tensors

_ALLOWS = "numerics='any' allows accumulation nevertheless"
_ENTRIES = (
    "If the loss is a mean over tokens or a mask, put the labels or the mask into the batch, so that micro batches can "
    "be weighted by them, or average over samples"
)
UNKNOWN = (
    f"{_ENTRIES}. If samples of a batch interact (batch normalisation, contrastive loss), no weights help; {_ALLOWS}"
)
"""What to do if the cause is not known."""
_INTERACT = f"No weights of micro batches help; {_ALLOWS}"
_MOST_PARTS = 8
"""Maximum number of parts whose gradients are computed one by one."""
_EQUATIONS = 4
"""Minimum number of entries of a gradient for each weight that is fitted to it."""
_EVEN = 0.01
"""Relative difference up to which fitted weights count as equal."""
_LOWER = 0.1
"""Minimum relative drop of the loss in the parts that is taken for a comparison of samples. In halves of a batch of 8,
a contrastive loss drops by a third."""
_NAMED = 2


def cause(
    gradients: Gradients, whole: Counted, parts: Sequence[Counted], seed: int, judge: Callable[[Gradients], str]
) -> str:
    """Returns why the gradient of `whole` is not that of its `parts`, and what to do, without a full stop.

    Args:
        gradients: computes gradients in the modes in which the two differ.
        whole: the whole batch.
        parts: the micro batches that it was cut into.
        seed: random seed with which the two differ.
        judge: compares the two in other modes: returns the numbers if they are equal, weighted as it may be, else "".
    """
    found = _Causes(gradients, whole, parts, seed, judge)
    with suppress(Overdue):  # the verdict stands, also where there is no time left to explain it
        for measured in (found.norms, found.training_alone, found.weights, found.interaction):
            with suppress(Exception):  # a step that does not run in these modes
                if text := measured():
                    return text
    return UNKNOWN


@dataclass(frozen=True, slots=True)
class _Causes:
    """The measurements, one per cause. Each returns a text, or "" if it finds nothing."""

    gradients: Gradients
    whole: Counted
    parts: Sequence[Counted]
    seed: int
    judge: Callable[[Gradients], str]

    def norms(self) -> str:
        with self.gradients.build(Plan()) as step:
            modules = step.draft.model.named_modules()
            names = [name for name, module in modules if isinstance(module, _BatchNorm) and module.training]
        if not names:
            return ""
        same = self._same_in(norms_evaluating if self._in_training else all_evaluating)
        if same:
            shown = f"with it in evaluation mode, {same}"
        elif (first := self._first(self.gradients.modes)) and first.name in names:
            shown = "its outputs for a sample are others in a micro batch"
        else:
            return ""
        layers = f"{len(names)} layer{'s' if len(names) > 1 else ''}: {format_names(names, _NAMED)}"
        return f"Samples of a batch interact in batch normalisation ({layers}): {shown}. {_INTERACT}"

    def training_alone(self) -> str:
        same = self._same_in(all_evaluating) if self._in_training else ""
        if not same:
            return ""
        return (
            f"Samples of a batch interact in {self._place(self.gradients.modes)}. They do in training mode only: in "
            f"evaluation mode, {same}. {_INTERACT}"
        )

    def weights(self) -> str:
        """Fits the gradient of the batch by those of its parts."""
        count = len(self.parts)
        if count > _MOST_PARTS:
            return ""
        whole = self.gradients.of([self.whole], self.seed)
        each = [
            sketch(self.gradients.of(self.parts, self.seed, weights=[float(at == one) for at in range(count)]).vector)
            for one in range(count)
        ]
        wanted, columns = sketch(whole.vector).double(), torch.stack(each, 1).double()
        if len(wanted) < _EQUATIONS * count:
            return ""
        found = torch.linalg.lstsq(columns, wanted[:, None], driver="gelsd").solution[:, 0]
        least, most = float(found.min()), float(found.max())
        if difference(columns @ found, wanted) > whole.most_l2 or least <= 0:
            return ""
        apart = "Samples of a batch do not interact, but its gradient is"
        if most - least < _EVEN * most:
            return (
                f"{apart} {most * count:.3g} times the mean of theirs: the loss is scaled by the size of the batch. "
                f"Average over samples; {_ALLOWS}"
            )
        return (
            f"{apart} a sum of theirs with weights from {least:.2g} to {most:.2g}, which nothing in the "
            f"batch gives (class weights, a mask made by the model). {_ENTRIES}; {_ALLOWS}"
        )

    def interaction(self) -> str:
        try:
            place = f"{self._place(all_evaluating)}. They do in evaluation mode too"
        except Exception:  # noqa: BLE001  # a step that runs in training mode only
            place = self._place(self.gradients.modes)
        return f"Samples of a batch interact in {place}. {_INTERACT}"

    def _place(self, modes: Modes) -> str:
        """Returns the first module whose outputs for a sample depend on the other samples, or else the loss.

        In the model itself, which comes last, the loss or what it is computed from may be the place.
        """
        found = self._first(modes)
        if found is None:
            return f"the loss: each sample has the same outputs alone, but {self._losses(modes)}"
        if found.name:
            return f"{found.name} ({found.kind})"
        return f"the model itself ({found.kind}) or the loss: {self._losses(modes)}"

    def _first(self, modes: Modes) -> "_Module | None":
        """Returns the first module whose outputs for a sample depend on the other samples; None if no outputs do."""
        batch, alone = _Outputs(modes), _Outputs(modes)
        whole = replace(self.gradients, modes=batch).of([self.whole], self.seed)
        replace(self.gradients, modes=alone).of(self.parts, self.seed)
        sizes = [part.samples for part in self.parts]
        places = (
            name
            for name, calls in batch.calls.items()
            if _differ(calls, alone.calls.get(name, []), sizes, whole.most_l2)
        )
        return next((_Module(name, batch.kinds[name]) for name in places), None)

    def _losses(self, modes: Modes) -> str:
        """Compares the loss of the batch with those of its parts."""
        used = replace(self.gradients, modes=modes)
        (batch,) = used.of([self.whole], self.seed).losses
        losses = zip(used.of(self.parts, self.seed).losses, StepBatch.of(self.parts).weights, strict=True)
        parts = sum(loss * weight for loss, weight in losses)
        kind = "a statistic over the batch is part of it"
        if batch - parts > _LOWER * abs(batch):
            kind = "it is lower for fewer samples, as where samples are compared with each other (contrastive loss)"
        elif parts > batch:
            kind = "it is higher for fewer samples, as with means over the batch (balance of routed experts, dice)"
        return f"the loss of the batch is {batch:.4g} and the mean of its parts' is {parts:.4g}; {kind}"

    @property
    def _in_training(self) -> bool:
        return self.gradients.modes is dropout_off

    def _same_in(self, modes: Modes) -> str:
        return self.judge(replace(self.gradients, modes=modes))


@dataclass(frozen=True, slots=True)
class _Module:
    """Name and class of a module; "" is the name of the model itself."""

    name: str
    kind: str


@dataclass(slots=True)
class _Outputs:
    """Modes under which the outputs of all modules are recorded: by name, those that end first come first.

    Attributes:
        modes: modes of the modules.
        calls: for each call of a module, a summary of each tensor of its output.
        kinds: class of each module.
    """

    modes: Modes
    calls: dict[str, list[list[torch.Tensor]]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def __call__(self, model: nn.Module) -> Iterator[None]:
        with self.modes(model), ExitStack() as hooks:
            for name, module in model.named_modules():
                self.kinds[name] = type(module).__name__
                hooks.callback(module.register_forward_hook(partial(self._note, name)).remove)
            yield

    def _note(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        plain = (tensor for tensor in tensors(output) if tensor.layout is torch.strided)
        found = [tensor for tensor in plain if tensor.is_floating_point() and tensor.dim() and tensor.numel()]
        self.calls.setdefault(name, []).append([_summary(tensor) for tensor in found])


def _summary(tensor: torch.Tensor) -> torch.Tensor:
    """Returns sum and L2 norm of each row of a tensor, as [2, rows]."""
    rows = tensor.detach().float().reshape(len(tensor), -1)
    return torch.stack([rows.sum(1), rows.norm(dim=1)]).cpu()


def _differ(
    batch: list[list[torch.Tensor]], alone: list[list[torch.Tensor]], sizes: Sequence[int], most: float
) -> bool:
    """Returns whether outputs for the samples of a batch differ from those that they have in micro batches.

    Outputs whose rows do not belong to samples are not compared. Rows are compared in ascending order, since a module
    may have several for each sample in any order.

    Args:
        batch: summaries of the calls for the whole batch.
        alone: the same for the micro batches, one after another.
        sizes: samples of each micro batch.
        most: relative difference up to which outputs are the same.
    """
    if len(alone) != len(batch) * len(sizes):
        return False
    for at, call in enumerate(batch):
        calls = alone[at :: len(batch)]
        for place, rows in enumerate(call):
            found = [other[place] for other in calls if place < len(other)]
            times = rows.shape[1] // sum(sizes)
            if times and [each.shape[1] for each in found] == [times * size for size in sizes]:
                together = torch.cat(found, 1)
                if together.shape == rows.shape and difference(together.sort().values, rows.sort().values) > most:
                    return True
    return False
