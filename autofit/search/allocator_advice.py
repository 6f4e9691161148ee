"""What expandable segments would save of the recommended plan's memory, by a replay of its trace.

The option is read when a process starts, so no plan can change it; the user can.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.core.account import Account
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.units import format_bytes, format_ratio
from autofit.estimators.base import Estimator
from autofit.memory.peak import MemoryUse

OPTION, VARIABLE = "expandable_segments:True", "PYTORCH_ALLOC_CONF"
FAR_RATIO = 1.21
"""Minimum ratio of reserved to allocated memory at which the option is considered. As much may remain with it: 21 % was
the largest excess of expandable segments at 75 points (reference/memory_prediction.md section 1)."""
ERROR_RATIO = 0.06
"""Largest relative error of a replay. The option must save more, and a replay of the plan as it ran must be closer."""


@dataclass(frozen=True, slots=True)
class AllocatorAdvice:
    """Compares a proven plan with itself under expandable segments.

    Args:
        account: how the device accounts for memory, with the allocator's present options.
        estimators: may have a trace of the plan.
        space: has the larger micro batches that may fit with the option.
        limit_bytes: the memory budget.
    """

    account: Account | None
    estimators: Sequence[Estimator]
    space: SearchSpace
    limit_bytes: int

    def caveats(self, plan: Plan, memory: Memory) -> Iterator[str]:
        """Yields the advice for a plan whose proof measured `memory`, if there is any."""
        account, reserved = self.account, memory.reserved_bytes
        if account is None or reserved is None or reserved < FAR_RATIO * memory.allocated_bytes:
            return
        settings = ",".join(filter(None, (account.settings, OPTION)))
        changed = account.model_copy(update={"settings": settings})
        now, then = self._use(plan, account), self._use(plan, changed)
        if now is None or then is None or now.reserved_bytes is None or then.reserved_bytes is None:
            return
        saved = now.reserved_bytes - then.reserved_bytes
        if abs(now.reserved_bytes - reserved) > ERROR_RATIO * reserved or saved <= ERROR_RATIO * reserved:
            return
        larger = self._larger(plan, account, changed, unseen=memory.judged_bytes - now.judged_bytes)
        fits = "" if larger is None else f", and micro batch {larger} would fit by its estimate"
        instead = ", in place of the variable that sets the present options," if account.settings else ""
        excess = format_ratio(reserved / memory.allocated_bytes)
        yield (
            f"the allocator reserves {format_bytes(reserved)}, {excess} of what it allocates. With expandable segments "
            f"it would reserve about {format_bytes(reserved - saved)}, by a replay of this plan's trace{fits}. To use "
            f"them, set {VARIABLE}={settings}{instead} before Python starts, and tune again"
        )

    def _larger(self, plan: Plan, account: Account, changed: Account, unseen: int) -> int | None:
        """Returns the largest micro batch of the plan's combination that fits only with the option; None if none does.

        Args:
            plan: the proven plan.
            account: with the present options.
            changed: with the option.
            unseen: bytes of the measured peak that the trace does not show.
        """
        for size in reversed(self.space.sizes):
            if size <= plan.micro_batch_size:
                return None
            other = self.space.at(plan.combination, size)
            now, then = self._use(other, account), self._use(other, changed)
            if now is None or then is None or self.space.violation(other) is not None:
                continue
            if then.judged_bytes + unseen <= self.limit_bytes / (1 + ERROR_RATIO):
                return size if now.judged_bytes + unseen > self.limit_bytes else None
        return None

    def _use(self, plan: Plan, account: Account) -> MemoryUse | None:
        found = (estimator.use_under(plan, account) for estimator in self.estimators)
        return next((use for use in found if use is not None), None)
