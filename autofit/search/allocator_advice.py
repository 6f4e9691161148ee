"""What expandable segments would save of the recommended plan's memory, by a replay of its trace or by one more proof.

The option is read when a process starts, so no plan can change it; the user can. Where the bench can start a process
with it, the plan is proven there too, and the advice is measured.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autofit.core.account import Account
from autofit.core.briefing import Briefing
from autofit.core.measurement import Memory
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.units import format_bytes, format_ratio
from autofit.estimators.base import Estimator
from autofit.memory.peak import MemoryUse
from autofit.search.bench import Bench, RestartableBench
from autofit.search.tuning import Findings, Tuning

OPTION, VARIABLE = "expandable_segments:True", "PYTORCH_ALLOC_CONF"
OLDER = re.compile(r"PYTORCH_[A-Z]+_ALLOC_CONF")
"""Names of the same variable for one kind of device, from earlier versions of torch."""
FAR_RATIO = 1.21
"""Minimum ratio of reserved to allocated memory at which the option is considered. As much may remain with it: 21 % was
the largest excess of expandable segments at 75 points (reference/memory_prediction.md section 1)."""
ERROR_RATIO = 0.06
"""Largest relative error of a replay. The option must save more, and a replay of the plan as it ran must be closer."""

Prove = Callable[[Plan, Mapping[str, str]], tuple[Briefing, Outcome] | None]
"""Proves a plan in a fresh process with other environment variables: see `RestartableBench.prove_under`."""


def advised(findings: Findings, tuning: Tuning, bench: Bench, say: Callable[[str], None]) -> Findings:
    """Returns the findings with the advice on the allocator's options.

    Args:
        findings: the result of a search.
        tuning: the arguments of the search.
        bench: what the search ran on. It may be able to start a process with other options.
        say: called with what happens, before something that takes long.
    """

    def prove(plan: Plan, variables: Mapping[str, str]) -> tuple[Briefing, Outcome] | None:
        if not isinstance(bench, RestartableBench):
            return None
        limit_s = math.inf if tuning.budget.time_s is None else tuning.budget.time_s
        say("proving the plan once more with expandable segments, if there is time")
        return bench.prove_under(plan, variables, limit_s - tuning.clock.elapsed_s)

    advice = AllocatorAdvice(bench.briefing.account, tuning.estimators, tuning.space, tuning.budget.memory_bytes, prove)
    return replace(findings, caveats=(*findings.caveats, *advice.caveats(findings.plan, findings.proof.memory)))


@dataclass(frozen=True, slots=True)
class _Saving:
    """What a replay of a proven plan's trace says of expandable segments.

    Attributes:
        now, then: how the device accounts for memory with the present options, and with expandable segments.
        reserved_bytes: what the plan's proof reserved.
        expected_bytes: what it would have reserved with expandable segments.
        unseen_bytes: bytes of the proof's peak that the trace does not show.
    """

    now: Account
    then: Account
    reserved_bytes: int
    expected_bytes: int
    unseen_bytes: int

    @property
    def how(self) -> str:
        """How to use expandable segments, as a sentence."""
        others = self.now.settings or set(_names()) - {VARIABLE}
        instead = ", in place of the variable that sets the present options," if others else ""
        return f"To use them, set {VARIABLE}={self.then.settings}{instead} before Python starts, and tune again"


@dataclass(frozen=True, slots=True)
class AllocatorAdvice:
    """Compares a proven plan with itself under expandable segments.

    Args:
        account: how the device accounts for memory, with the allocator's present options.
        estimators: may have a trace of the plan.
        space: has the larger micro batches that may fit with the option.
        limit_bytes: the memory budget.
        prove: proves a plan with other options; returns None where that is not possible.
    """

    account: Account | None
    estimators: Sequence[Estimator]
    space: SearchSpace
    limit_bytes: int
    prove: Prove = lambda plan, variables: None

    def caveats(self, plan: Plan, memory: Memory) -> Iterator[str]:
        """Yields the advice for a plan whose proof measured `memory`, if there is any."""
        saving = self._saving(plan, memory)
        if saving is None:
            return
        reserved, outcome = saving.reserved_bytes, self._proven(plan, saving.then)
        excess = format_ratio(reserved / memory.allocated_bytes)
        present = f"the allocator reserves {format_bytes(reserved)}, {excess} of what it allocates."
        present += " With expandable segments"
        if outcome is None:
            about = f"it would reserve about {format_bytes(saving.expected_bytes)}, by a replay of this plan's trace"
            yield f"{present} {about}{self._fits(plan, saving)}. {saving.how}"
        elif not outcome.measured or outcome.measurement is None:
            yield f"{present} a proof of this plan failed: {outcome.status.value}, {outcome.reason}"
        else:
            found = outcome.measurement.memory.reserved_bytes or reserved
            fits = "" if _differ(saving.expected_bytes, found) else self._fits(plan, saving)
            if reserved - found > ERROR_RATIO * reserved:
                exactly = f"it reserves {format_bytes(found)}, measured by a second proof of this plan"
                yield f"{present} {exactly}{fits}. {saving.how}"

    def _saving(self, plan: Plan, memory: Memory) -> _Saving | None:
        """Returns what a replay says; None if it says little, or if it does not explain the measured memory."""
        account, reserved = self.account, memory.reserved_bytes
        if account is None or reserved is None or reserved < FAR_RATIO * memory.allocated_bytes:
            return None
        changed = account.model_copy(update={"settings": ",".join(filter(None, (account.settings, OPTION)))})
        now, then = self._use(plan, account), self._use(plan, changed)
        if now is None or then is None or now.reserved_bytes is None or then.reserved_bytes is None:
            return None
        saved = now.reserved_bytes - then.reserved_bytes
        if _differ(now.reserved_bytes, reserved) or saved <= ERROR_RATIO * reserved:
            return None
        return _Saving(account, changed, reserved, reserved - saved, memory.judged_bytes - now.judged_bytes)

    def _proven(self, plan: Plan, changed: Account) -> Outcome | None:
        """Returns the outcome of a proof with the options of `changed`; None if there is none or it decides nothing."""
        proven = self.prove(plan, dict.fromkeys(_names(), changed.settings))
        if proven is None:
            return None
        briefing, outcome = proven
        settings = "" if briefing.account is None else briefing.account.settings
        decided = outcome.measured or outcome.status.does_not_fit or outcome.status.at_any_size
        return outcome if decided and OPTION in settings else None  # the user's code may set other options

    def _fits(self, plan: Plan, saving: _Saving) -> str:
        """Returns the words on the micro batch that fits only with the option; "" if there is none."""
        larger = self._larger(plan, saving)
        return "" if larger is None else f", and micro batch {larger} would fit by its estimate"

    def _larger(self, plan: Plan, saving: _Saving) -> int | None:
        """Returns the largest micro batch of the plan's combination that fits only with the option, if one does."""
        unseen = saving.unseen_bytes
        for size in reversed(self.space.sizes):
            if size <= plan.micro_batch_size:
                return None
            other = self.space.at(plan.combination, size)
            now, then = self._use(other, saving.now), self._use(other, saving.then)
            if now is None or then is None or self.space.violation(other) is not None:
                continue
            if then.judged_bytes + unseen <= self.limit_bytes / (1 + ERROR_RATIO):
                return size if now.judged_bytes + unseen > self.limit_bytes else None
        return None

    def _use(self, plan: Plan, account: Account) -> MemoryUse | None:
        found = (estimator.use_under(plan, account) for estimator in self.estimators)
        return next((use for use in found if use is not None), None)


def _names() -> tuple[str, ...]:
    """Returns the names of the variable that must be set for a new process: `VARIABLE`, and older ones that are set.

    If an older name is set, be it to "", torch does not read `VARIABLE` (2.11 on CUDA; tests/cuda has this case).
    """
    return (VARIABLE, *(name for name in os.environ if OLDER.fullmatch(name)))


def _differ(replayed: int, measured: int) -> bool:
    """Returns whether a replay does not explain a measured number of bytes."""
    return abs(replayed - measured) > ERROR_RATIO * measured
