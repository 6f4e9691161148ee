"""Verdicts of gates on values of knobs, and the result of the check of a whole plan. Nothing here needs torch."""

from collections.abc import Collection, Iterable, Mapping

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.space import Refusal
from autofit.core.strict import Strict

ACCUMULATION = "accumulation"
"""Name of the value that stands for other micro batches of the same global batch."""
OTHER_BATCH = "batch_size"
"""Name of the value that stands for another batch where the global batch is free."""
_TOGETHER = " & "


class GateVerdict(Strict):
    """What a gate found on a value. A study keeps it.

    Attributes:
        passed: whether the value keeps the gradient.
        reason: what was compared, found and allowed; after a failure, also what to do.
        weighing: quantity by which micro batches must be weighted, as text; "" for their number of samples.
        moves: names of state that the step itself changes in each micro batch.
        evaluated: whether the comparison was made in evaluation mode, so that behaviour specific to training was not
            compared.
        compared: whether gradients were compared. If not, a value passes only if its technique keeps the arithmetic.
    """

    passed: bool
    reason: str
    weighing: str = ""
    moves: tuple[str, ...] = ()
    evaluated: bool = False
    compared: bool = True


class Checked(Strict):
    """Whether a plan keeps the baseline's gradient. By default nothing had to be checked.

    Attributes:
        passed: whether the plan may be the answer.
        checked: whether the check has a result. A plan that could not be checked is not the answer yet.
        reason: why it does not pass; "" if it does.
        verdicts: the new verdicts by value: "accumulation", or a knob and its value such as "precision=bf16". A failure
            of several values that pass one by one has the names of all of them, as `together` writes them.
        caveats: what the user should know if the plan is the answer.
        refused: the values at fault. If `checked` is False, the values that no comparison can decide on: they leave the
            search, and a later one compares them again.
    """

    passed: bool = True
    checked: bool = True
    reason: str = ""
    verdicts: Mapping[str, GateVerdict] = {}
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def failed(reason: str) -> GateVerdict:
    """Returns the verdict that a value changes the gradient."""
    return GateVerdict(passed=False, reason=reason)


def unchecked(reason: str) -> GateVerdict:
    """Returns the verdict that nothing could be compared. What changes the arithmetic then does not pass."""
    return GateVerdict(passed=False, reason=f"could not be checked: {reason}", compared=False)


def values_to_check(plan: Plan, baseline: Plan, *, free: bool) -> list[str]:
    """Returns the names of the values of a plan that differ from the baseline: of techniques, then that of its batch.

    `free` says that the global batch may be changed.
    """
    changed = plan.changes_from(baseline)
    found = [f"{name}={value}" for name, value in changed.items() if name in plan.combination.values]
    if not free and ACCUMULATION_STEPS in changed:
        found.append(ACCUMULATION)
    if free and MICRO_BATCH_SIZE in changed:
        found.append(OTHER_BATCH)
    return found


def together(values: Iterable[str]) -> str:
    """Returns the name of several values as one."""
    return _TOGETHER.join(sorted(values))


def at_fault(values: Collection[str], known: Mapping[str, GateVerdict]) -> str:
    """Returns the known value, or several as one, that a plan with these values has and that failed; "" if none."""
    refused = (name for name, verdict in known.items() if not verdict.passed)
    return next((name for name in refused if name in values or set(name.split(_TOGETHER)).issubset(values)), "")
