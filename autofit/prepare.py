"""Prepare: builds a TrainStep from a plan, workload and device. Its strategies are undone when the step is closed.

The probe, the gates and the user's training all use these functions.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.strategies import members
from autofit.strategies.base import Strategy
from autofit.workloads.batch_store import BatchStore
from autofit.workloads.batches import BatchSource
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.update import WHOLE


def prepare(plan: Plan, draft: Draft, strategies: Sequence[Strategy]) -> TrainStep:
    """Returns the train step of `plan`: `draft` with each strategy applied in the order of its phase.

    The model and the optimizer of `draft` are changed in place until the step is closed.

    Raises:
        SpaceError: the plan names a knob that no strategy owns, or a value that cannot be applied here. Strategies
            applied before the error are undone.
    """
    known = {name for strategy in strategies for name in strategy.owns}
    if unknown := sorted(set(plan.values) - known):
        raise SpaceError(
            f"the plan has the knobs {', '.join(unknown)}, which no strategy of this version owns; "
            f"expected {', '.join(sorted(known))}. Install the autofit version that made the plan."
        )
    inside = {name for strategy in strategies if not strategy.fits_update_fn for name in strategy.owns}
    if draft.loss.update is not None and (found := sorted(set(plan.values) & inside)):
        raise SpaceError(
            f"the plan has the knobs {', '.join(found)}, but {WHOLE}; expected techniques that leave its inside as it "
            "is. Tune again with update_fn."
        )
    acting = _acting(plan, strategies)
    if draft.ranks is not None:
        _check_on_ranks(plan, acting)
    with ExitStack() as undo:
        for strategy in acting:
            undo.enter_context(strategy.apply(plan, draft))
        return TrainStep(plan=plan, draft=draft, _undo=undo.pop_all())


def _check_on_ranks(plan: Plan, acting: Sequence[Strategy]) -> None:
    """Checks that a plan can be applied on several ranks.

    Raises:
        SpaceError: a technique cannot.
    """
    for strategy in acting:
        if reason := strategy.not_on_ranks or strategy.conflict(plan):
            raise SpaceError(
                f"the plan has {strategy.name}, which cannot be applied on these ranks: {reason}; expected techniques "
                "that can. Leave it out, or choose another layout."
            )


def batches_of(plan: Plan, source: BatchSource, strategies: Sequence[Strategy]) -> BatchSource:
    """Returns what makes the batches of `plan` from the user's loader. `source` and the loader are not changed.

    Raises:
        SpaceError: this loader does not support the plan.
    """
    for strategy in _acting(plan, strategies):
        source = strategy.batches(plan, source)
    return source


def _acting(plan: Plan, strategies: Sequence[Strategy]) -> list[Strategy]:
    """Returns the strategies that change anything under `plan`, in the order of their phases."""
    return sorted((each for each in strategies if each.acts(plan)), key=lambda member: member.phase)


class PlanBatches:
    """The source and the store of the batches of each plan. Plans with the same batches share them.

    Args:
        source: makes the user's batches.
    """

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._stores: list[BatchStore] = []

    def source(self, plan: Plan) -> BatchSource:
        """Returns what makes the batches of a plan.

        Raises:
            SpaceError: this loader does not support the plan.
        """
        return batches_of(plan, self._source, members())

    def store(self, plan: Plan) -> BatchStore:
        """Returns the same with a cache of the typical batches.

        Raises:
            SpaceError: this loader does not support the plan.
        """
        source = self.source(plan)
        found = next((store for store in self._stores if store.source is source), None)
        if found is None:
            found = BatchStore(source)
            self._stores.append(found)
        return found
