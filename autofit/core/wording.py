"""Wording: short texts for plans and outcomes, used in reports, files and progress lines."""

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.units import format_bytes, short_number

WITH_CLOSURE = "Pass update_fn, which does the whole step and gives the optimizer its closure, or use another one."
"""What to do with an optimizer whose `step` needs a closure, such as LBFGS and SAM."""


def install_command(extra: str) -> str:
    """Returns how to install what an extra brings. autofit is on no package index yet, so it is said for a checkout."""
    return f"pip install '.[{extra}]' in a checkout of autofit"


def describe_plan(plan: Plan, baseline: Plan) -> str:
    """Describes the batch of `plan` and the knobs that differ from `baseline`."""
    micro, steps = plan.micro_batch_size, plan.accumulation_steps
    batch = f"micro batch {micro}" + (f" x {steps} accumulation steps = {micro * steps}" if steps > 1 else "")
    changes = plan.combination.changes_from(baseline.combination)
    return ", ".join([batch, *(f"{name}={value}" for name, value in changes.items())])


def describe_outcome(outcome: Outcome, unit: str = "samples", rate_per_s: float | None = None) -> str:
    """Returns the throughput and peak of a measured outcome, or the reason there is none.

    Args:
        outcome: the outcome of a plan.
        unit: unit of the throughput: "samples" or "tokens".
        rate_per_s: throughput on the scale of the other plans shown. None uses that of the outcome.
    """
    if outcome.measurement is None or not outcome.measured:
        return f"{outcome.status.value}: {outcome.reason}"
    measurement = outcome.measurement
    tokens = measurement.tokens_per_s if unit == "tokens" else None
    measured, counted = (measurement.samples_per_s, "samples") if tokens is None else (tokens, "tokens")
    rate = f"{short_number(measured if rate_per_s is None else rate_per_s)} {counted}/s"
    peak = measurement.memory.judged_bytes
    return f"{rate}, peak {format_bytes(peak)}" if peak else rate


def a_type(value: object) -> str:
    """Returns the type of a value with its article: "an int", "a Linear"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
