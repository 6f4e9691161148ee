"""Runs plans in interleaved blocks, so that a change of the device's speed meets all of them alike."""

import math
from collections.abc import Callable, Mapping

from autofit.core.budget import Clock
from autofit.core.errors import AutofitError
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose

LEAST_ROUNDS = 4


def interleaved(
    evaluate: Callable[[Plan, Purpose], Outcome],
    plans: Mapping[str, Plan],
    rounds: int,
    clock: Clock,
    limit_s: float,
    least: int = LEAST_ROUNDS,
) -> dict[str, list[float]]:
    """Returns the log throughputs of each plan, in the order of the rounds; every second round runs backwards.

    Args:
        evaluate: runs a plan.
        plans: the plans, which ran before.
        rounds: maximum number of rounds.
        clock: measures the time.
        limit_s: time of the clock after which no round begins.
        least: number of rounds that run in any case.

    Raises:
        AutofitError: a block failed.
    """
    logs: dict[str, list[float]] = {name: [] for name in plans}
    for index in range(rounds):
        if index >= least and clock.elapsed_s > limit_s:
            break
        order = list(plans.items())
        for name, plan in order if index % 2 == 0 else order[::-1]:
            outcome = evaluate(plan, Purpose.BLOCK)
            if outcome.measurement is None:
                raise AutofitError(f"{plan} ran before but failed now: {outcome.status.value}, {outcome.reason}")
            logs[name].append(math.log(outcome.measurement.samples_per_s))
    return logs
