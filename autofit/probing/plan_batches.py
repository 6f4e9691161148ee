"""PlanBatches: the batches of each plan, since a strategy may change which samples are batched together."""

from autofit.core.plan import Plan
from autofit.prepare import batches_of
from autofit.strategies import members
from autofit.workloads.batch_store import BatchStore
from autofit.workloads.batches import BatchSource


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
