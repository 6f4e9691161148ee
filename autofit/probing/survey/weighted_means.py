"""Losses that are a mean over weighted targets: torch's losses of classes with `weight` or `ignore_index`.

The mean of a micro batch then divides by the weights of its own targets. Samples of one class do not show it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autofit.core.plan import Plan
from autofit.probing.survey.gradients import Build, State, generators_restored
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import Batch, map_tensors, tensors

_UNUSED = -100
"""Default of `ignore_index`."""
_WEIGHT, _IGNORED = 2, 4
"""Positions of `weight` and `ignore_index` among the arguments."""


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """A mean over weighted targets.

    Attributes:
        weights: weight of each class, on the host; None: all alike.
        ignored: the target that has no weight.
    """

    weights: Tensor | None
    ignored: int

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


def weighted_mean(build: Build, batch: Counted, state: State) -> WeightedMean | None:
    """Runs the loss once and returns how it weights targets; None if it is another loss."""
    watching = _Watching()
    try:
        with build(Plan()) as step, generators_restored(step.draft.device), torch.no_grad(), watching:
            part = map_tensors(fresh(batch.batch), lambda tensor: tensor.to(step.draft.device))
            step.draft.loss.compute(step.draft.model, part)
    finally:
        state.restore()
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
                self.found = WeightedMean(None if weight is None else weight.detach().cpu(), ignored)
        return func(*args, **given)
