"""Batches for gates, whose samples differ in what a loss may be a mean over."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autofit.gates.gradients import BASELINE, Steps, generators_restored
from autofit.workloads.batch_store import fresh
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.lengths import elements
from autofit.workloads.tree import Batch, map_tensors, tensors
from autofit.workloads.useful_targets import marked, may_differ, unevenness

_INSPECTED = 8
"""Number of batches that are inspected."""
_MOST_INSPECTED, _READING_S = 128, 5.0
"""Number of batches that are inspected for rare targets, and the seconds that reading them may take."""
_SHOWN = 2
"""Number of marked samples in a batch from which a mean over them differs from a sum."""
_COMPARED = 3
"""Number of batches on which a mean over weighted targets is compared."""
_MOST_ELEMENTS = 2**24
"""Maximum number of elements of a batch whose labels are compared with those of other batches."""
_UNUSED = -100
"""Default of `ignore_index`."""
_WEIGHT, _IGNORED = 2, 4
"""Positions of `weight` and `ignore_index` among the arguments of torch's losses of classes."""


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """A mean over weighted targets: torch's losses of classes with `weight` or `ignore_index`.

    The mean of a micro batch then divides by the weights of its own targets. Samples of one class do not show it.

    Attributes:
        weights: weight of each class, on the host; None: all alike.
        ignored: the target that has no weight.
        shown: whether the targets of the call differed in weight. They may be the loss's own, made by matching.
    """

    weights: Tensor | None
    ignored: int
    shown: bool = False

    @property
    def by_class(self) -> bool:
        """Whether classes have different weights."""
        return self.weights is not None and bool((self.weights != self.weights[0]).any())

    def unevenness(self, batch: Batch, size: int) -> float:
        """Returns how much the samples of a batch differ in the weight of their targets, from 0 to 1."""
        found = 0.0
        for tensor in tensors(batch):
            whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
            if whole and tensor.dim() and tensor.shape[0] == size and tensor.numel():
                found = max(found, self._spread(tensor.detach().cpu().long().reshape(size, -1)))
        return found

    def _spread(self, targets: Tensor) -> float:
        counted = targets != self.ignored
        weights = counted.double()
        if self.weights is not None:
            if not bool(((targets >= 0) & (targets < len(self.weights)))[counted].all()):
                return 0.0  # not the targets
            weights = self.weights.double()[targets.clamp(0, len(self.weights) - 1)] * counted
        each = weights.mean(1)
        most = float(each.max())
        return (most - float(each.min())) / most if most > 0 else 0.0


def weighted_mean(steps: Steps, batch: Counted) -> WeightedMean | None:
    """Runs the loss once and returns how it weights targets; None if it is another loss."""
    watching = _Watching()
    try:
        with steps.build(BASELINE) as step, generators_restored(step.draft.device), watching:
            part = map_tensors(fresh(batch.batch), lambda tensor: tensor.to(step.draft.device))
            step.draft.loss.compute(step.draft.model, part)
    finally:
        steps.restore()
    return watching.found


class _Watching(TorchFunctionMode):
    """Notes the first call of a loss of classes that is a weighted mean."""

    found: WeightedMean | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function."""
        given = dict(kwargs or {})
        if self.found is None and func in (F.cross_entropy, F.nll_loss) and given.get("reduction", "mean") == "mean":
            weight = given.get("weight", args[_WEIGHT] if len(args) > _WEIGHT else None)
            ignored = int(given.get("ignore_index", args[_IGNORED] if len(args) > _IGNORED else _UNUSED))
            if weight is not None or ignored != _UNUSED:
                mean = WeightedMean(None if weight is None else weight.detach().cpu(), ignored)
                target = given["target"] if "target" in given else args[1]
                self.found = replace(mean, shown=mean.unevenness(target.flatten(), target.numel()) > 0)
        return func(*args, **given)


def uneven(source: BatchSource, size: int) -> Cuttable:
    """Returns a batch of a size: if possible, the one of a few whose samples differ most in their useful entries."""
    (first,) = source.cuttable(size, 1)
    differs = may_differ(first.batch, size) and elements(first.batch) <= _MOST_ELEMENTS
    if not source.resizable or not (source.varies or differs):
        return first

    def score(found: Cuttable) -> float:
        tokens = [source.tokens(part.batch) or 0 for part in found.cut([1] * found.samples)]
        return (max(tokens) - min(tokens)) / max(*tokens, 1) + unevenness(found.batch, found.samples)

    return max(source.cuttable(size, _INSPECTED), key=score)


def unevenly_weighted(source: BatchSource, size: int, mean: WeightedMean) -> list[Cuttable]:
    """Returns several batches whose targets a loss weights differently, the most different first, if there are any."""
    scored = [(mean.unevenness(batch.batch, size), batch) for batch in _many(source, size)]
    differing = sorted((each for each in scored if each[0] > 0), key=lambda each: each[0], reverse=True)
    return [batch for _, batch in differing[:_COMPARED]]


def with_rare_marks(source: BatchSource, first: Cuttable) -> tuple[list[Cuttable], str]:
    """Returns batches that show what a loss may divide by, and the condition that no batch shows in two samples.

    A sum divided by the number of marked samples looks like a plain sum, where a batch has at most one of them. The
    batch `first` comes first; it is the only one if it has two samples or more of each kind. The condition is "" if
    there is none, or if it marks no sample that was read.
    """
    size = first.samples
    rare = {mark for mark, count in marked(first.batch, size).items() if count < _SHOWN}
    if not rare:
        return [first], ""
    read = [(batch, marked(batch.batch, size)) for batch in _many(source, size)]
    best, hidden = {id(first): first}, ""
    for mark in sorted(rare):
        batch, marks = max(read, key=lambda each: each[1].get(mark, 0))
        if count := marks.get(mark, 0):
            best[id(batch)] = batch
            hidden = hidden or (mark if count < _SHOWN else "")
    return list(best.values()), hidden


def _many(source: BatchSource, size: int) -> list[Cuttable]:
    """Returns as many batches as can be read in `_READING_S`."""
    began = perf_counter()
    source.cuttable(size, 1)
    took_s = max(perf_counter() - began, 1e-6)
    return source.cuttable(size, min(_MOST_INSPECTED, 1 + int(_READING_S / took_s)))
