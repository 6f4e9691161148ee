"""The error that ends a search without an answer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from autofit.core.budget import Budget
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    DevicePoisoned,
    NonFiniteLoss,
    NothingFits,
    UserCodeError,
    WorkloadError,
)
from autofit.core.estimate import Estimate
from autofit.core.outcome import CONTRACT, LAST_BATCH, Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.printable import printable
from autofit.core.space import Refusal
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_duration, short_number
from autofit.core.wording import WITH_CLOSURE, describe_plan
from autofit.terminal import cut_middle

_SHOWN, _WORDS = 3, 200
_ERROR_LINE = re.compile(
    r"(Fatal Python error: |terminate called |what\(\): |[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b)"
)


def users_fault(
    trials: Sequence[Trial], baseline: Plan, fits: Callable[[Plan], bool] = lambda plan: False
) -> UserCodeError | None:
    """Returns the error that makes further probes pointless, by the trials of this run; None if there is none.

    That is so if the baseline gives no loss, or one that is not finite, or if the user's code fails with the baseline
    and with another plan. A failure of one combination alone only drops that combination. So it also is if the baseline
    fails ambiguously at two sizes that surely fit, by `fits`, and nothing ran: memory is then not the reason.
    """
    runs = [t for t in trials if t.plan == baseline]
    if runs and runs[-1].outcome.status is Status.NUMERIC:
        return NonFiniteLoss(
            f"the baseline ({describe_plan(baseline, baseline)}) gives a loss or gradient that is not finite: "
            f"{runs[-1].outcome.reason}. Check the learning rate, the data and the loss, then tune again.",
            runs[-1].outcome.traceback_text,
        )
    failed = [t for t in trials if t.outcome.status.of_users_code and t.outcome.phase != LAST_BATCH]
    found = next((t for t in failed if t.plan == baseline), None)
    if found is not None and found.outcome.phase == CONTRACT:
        why = f"your code does not give a loss to train on: {found.outcome.reason}. Change it, then tune again."
        return UserCodeError(why, found.outcome.traceback_text)
    if found is not None and len({t.plan.key for t in failed}) > 1:
        return _user_code(found, len(failed), baseline)
    same = [t for t in trials if t.plan.combination == baseline.combination]
    unclear = {t.plan.key: t for t in same if t.outcome.status is Status.AMBIGUOUS and fits(t.plan)}
    if len(unclear) > 1 and not any(t.outcome.measured for t in trials):
        return _user_code(next(iter(unclear.values())), len(unclear), baseline)
    return None


def nothing_measured(
    trials: Sequence[Trial],
    baseline: Plan,
    budget: Budget,
    stopped: str,
    early: bool,
    estimated: Mapping[str, Estimate] = MappingProxyType({}),
    refused: Sequence[Refusal] = (),
) -> AutofitError:
    """Returns the error for a search that has no measured plan.

    `trials` are all trials, the skipped ones included. `early` says that a limit ended the search, and
    `estimated` is the estimated peak of each plan by its key.
    """
    note = f" ({budget.memory_note})" if budget.memory_note else ""
    gated = "; ".join(f"{r.name} ({cut_middle(r.reason, _WORDS)})" for r in refused if r.origin == "gate")
    left_out = f" A check of this model's gradient left out {gated}." if gated else ""  # it might have fitted
    ran = [t for t in trials if t.outcome.status is not Status.SKIPPED]
    crashed = ran if all(t.outcome.status.inconclusive for t in ran) else []
    said = len(crashed) > 1 or any(_last_error(t.outcome.traceback_text) for t in crashed)  # else something killed it
    if crashed and (not early or (said and all(t.outcome.status is Status.CRASHED for t in crashed))):
        return _crash(crashed, baseline)
    failed = [t for t in trials if t.outcome.status.of_users_code]
    if any(t.plan == baseline for t in failed):
        return _user_code(failed[0], len(failed), baseline)
    if early:
        return BudgetSpent(
            f"the search ended before any plan was measured inside the budget: {stopped}. {_tried(trials, baseline)} "
            "Give more time or trials; the study keeps what was measured."
        )
    if failed:
        return _user_code(failed[0], len(failed), baseline)
    if any(t.outcome.status.does_not_fit or t.outcome.status is Status.SKIPPED for t in trials):
        return NothingFits(
            f"no plan fits into {format_bytes(budget.memory_bytes)}{note}. "
            f"{_smallest(trials, baseline, budget, estimated)} {_tried(trials, baseline)}{left_out} "
            "Give more memory, allow more strategies, or use a smaller model or shorter samples."
        )
    return WorkloadError(f"no plan could be measured, and memory was not the reason. {_tried(trials, baseline)}")


def too_short(stopped: str, elapsed_s: float) -> BudgetSpent:
    """Returns the error for a time budget that opening the workload used up, before one step of the baseline."""
    return BudgetSpent(
        f"the search ended before one step of the baseline: {stopped}. Opening the workload took "
        f"{format_duration(elapsed_s)}: give at least {format_duration(2 * elapsed_s)}."
    )


def nothing_proven(failed: Sequence[Trial], baseline: Plan, measured: int, budget: Budget) -> AutofitError:
    """Returns the error for a search with `measured` plans that ran as probes, none of which could be proven.

    `failed` are the blocks and proofs that failed; none if only a check was missing.
    """
    users = [t for t in failed if t.outcome.status.of_users_code]
    if users:
        return _user_code(users[0], len(users), baseline)
    plans = "one plan" if measured == 1 else f"{measured} plans"
    if all(t.outcome.status in (Status.TIMED_OUT, Status.SKIPPED) for t in failed):
        tried = f" {_tried(failed, baseline)}" if failed else ""
        return BudgetSpent(
            f"{plans} ran as short probes, and time ran out before one was proven and checked.{tried} Give more time: "
            "the study keeps what was measured, and the search continues from there."
        )
    what = f"{plans} ran as short probes, none as a proof inside {format_bytes(budget.memory_bytes)}"
    if all(t.outcome.status.does_not_fit for t in failed):
        return NothingFits(f"{what}. {_tried(failed, baseline)} Give more memory or headroom.")
    return WorkloadError(f"{what}, and memory was not the only reason. {_tried(failed, baseline)}")


def nothing_pinned(
    trials: Sequence[Trial],
    baseline: Plan,
    pinned: Mapping[str, KnobValue],
    stopped: str,
    *,
    early: bool,
    likely: bool,
    refused: str = "",
) -> AutofitError:
    """Returns the error for a search in which no plan with the pinned values can be the answer.

    `trials` are those of plans with these values, `likely` says that one of these plans is likely to fit, and `refused`
    is why a check of the gradient refused those that were measured.
    """
    pins = f"no plan with {', '.join(f'{name}={value}' for name, value in pinned.items())}"
    what = f"{pins} could be measured"
    ran = [t for t in trials if t.outcome.status is not Status.SKIPPED]
    if refused:
        return WorkloadError(f"{pins} passed the check of this model's gradient: {refused}. Pin other values.")
    if not trials and not early and likely:
        return BudgetSpent(f"{what}: the search ended before one ran, {stopped}. Give more time, or pin other values.")
    if not trials and not early:
        return NothingFits(f"{what}: none is likely to fit. Give more memory or time, or pin other values.")
    if any(t.outcome.status.does_not_fit for t in trials) or not (ran or early):
        return NothingFits(f"{what}. {_tried(ran or trials, baseline)} Give more memory, or pin other values.")
    if early and not ran:
        return BudgetSpent(f"{what} within the limits on time and trials. Give more, or pin fewer knobs.")
    return WorkloadError(f"{what}. {_tried(ran or trials, baseline)} Pin other values.")


def for_good(reason: str) -> DevicePoisoned:
    """Returns the error for a device that stays in an error state, even in a fresh process."""
    return DevicePoisoned(
        f"the device answers every call with an error: {reason}. The study keeps all finished trials: start a new "
        "process and resume it."
    )


@contextmanager
def poison_ends_search() -> Iterator[None]:
    """Ends the search where a closer look at a plan finds the device in an error state.

    Raises:
        DevicePoisoned: the device is in an error state; the message says how to continue.
    """
    try:
        yield
    except DevicePoisoned as error:
        raise for_good(str(error)) from error


def _user_code(trial: Trial, times: int, baseline: Plan) -> UserCodeError:
    where = f" in {trial.outcome.phase}" if trial.outcome.phase else ""
    what, advice = "your code", " Run one training step of your own to reproduce it, fix it, then tune again."
    if trial.outcome.phase == "optimizer" and "closure" in trial.outcome.reason:
        advice = f" {WITH_CLOSURE}"
    if "to avoid it, pin " in trial.outcome.reason:  # as one of ranks says
        what, advice = "a training step", ""
    return UserCodeError(
        f"{what} failed{where} in {times} of the plans tried, first with {describe_plan(trial.plan, baseline)}: "
        f"{trial.outcome.reason}.{advice}",
        trial.outcome.traceback_text,
    )


def _crash(trials: Sequence[Trial], baseline: Plan) -> UserCodeError:
    """Returns the error for a workload whose process crashed or hung with every plan."""
    first, plans = trials[0], len({t.plan.key for t in trials})
    last = next((line for t in trials if (line := _last_error(t.outcome.traceback_text))), "")
    output = f" Its last error output was: {last}." if last else ""
    return UserCodeError(
        f"the process that runs your code crashed or hung with each of the {plans} plans tried ({len(trials)} runs), "
        f"first with {describe_plan(first.plan, baseline)}: {first.outcome.reason}.{output} Expected at least one plan "
        "to run: run a few training steps of your own with `python -X faulthandler` to see where it ends, fix it, then "
        "tune again."
    )


def _last_error(text: str) -> str:
    """Returns the last line that names an error, and no other line: output of user code may hold secrets."""
    lines = [line.strip() for line in printable(text).splitlines()]
    return next((line[:_WORDS] for line in reversed(lines) if _ERROR_LINE.match(line)), "")


def _smallest(trials: Sequence[Trial], baseline: Plan, budget: Budget, estimated: Mapping[str, Estimate]) -> str:
    """Returns the smallest measured or else estimated peak in words, with the part that no smaller batch saves."""
    memories = [(t.outcome.measurement.memory, t.plan) for t in trials if t.outcome.measurement is not None]
    measured = [(memory.judged_bytes, memory.static_bytes, plan) for memory, plan in memories]
    estimates = [(estimated[t.plan.key], t.plan) for t in trials if t.plan.key in estimated]
    found = measured or [(estimate.value_bytes, estimate.static_bytes, plan) for estimate, plan in estimates]
    if not found:
        return "No step was completed, so no peak is known."
    peak_bytes, static_bytes, plan = min(found, key=lambda each: each[0])
    missing, static = peak_bytes - budget.memory_bytes, ""
    if static_bytes is not None:
        static = f", of which {format_bytes(static_bytes)} stay between steps"
    above = f", {format_bytes(missing)} above the budget" if missing > 0 else ""
    which = "The smallest measured" if measured else "No step was completed; the smallest estimated"
    return f"{which} peak is {format_bytes(peak_bytes)}{static}{above}, with {describe_plan(plan, baseline)}."


def _tried(trials: Sequence[Trial], baseline: Plan) -> str:
    """Returns what became of the plans that ran: the first and the last ones, by what they change in the baseline."""
    if not trials:
        return "Nothing was tried."
    skipped = [t for t in trials if t.outcome.status is Status.SKIPPED]
    first, *others = [t for t in trials if t.outcome.status is not Status.SKIPPED] or trials
    lines = [f"{describe_plan(first.plan, baseline)}: {_became(first)}"]
    lines += [f"{describe_plan(t.plan, baseline)}: {_became(t)}" for t in others[-_SHOWN:]]
    more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    unrun = ""
    if skipped and first not in skipped:
        last = f"{describe_plan(skipped[-1].plan, baseline)}: {cut_middle(skipped[-1].outcome.reason, _WORDS)}"
        unrun = f" Not run: {last}{f'; and {len(skipped) - 1} more' if len(skipped) > 1 else ''}."
    return f"Tried: {'; '.join(lines)}{more}.{unrun}"


def _became(trial: Trial) -> str:
    outcome = trial.outcome
    measurement = outcome.measurement
    speed = ""
    if measurement is not None:
        peak = format_bytes(measurement.memory.judged_bytes)
        speed = f", {short_number(measurement.samples_per_s)} samples/s, peak {peak}"
    known = not outcome.reason or (speed and outcome.status is Status.OVER_BUDGET)  # the reason would repeat the peak
    return f"{outcome.status.value}{speed}" + ("" if known else f" ({outcome.reason})")
