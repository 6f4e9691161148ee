"""Texts with advice for when nothing fits, the step cannot be traced, or something was not checked."""

from collections.abc import Sequence

from autofit.core.errors import UserCodeError
from autofit.core.plan import same_value
from autofit.core.space import SpaceFacts
from autofit.core.units import format_bytes
from autofit.estimation.records import EstimatedPlan, Row
from autofit.estimation.text import plural
from autofit.memory.breakdown import OUTSIDE, Breakdown, Part
from autofit.memory.trace import Kind

WANTS_ACCELERATOR = (
    "not compiled with CUDA",
    "No CUDA GPUs are available",
    "no NVIDIA driver",
    "No HIP GPUs",
    "on a CUDA device but torch.cuda.is_available()",
    "Cannot access accelerator device",
)
"""Parts of torch's error messages for code that needs an accelerator when there is none."""


def untraceable_advice(parts: Sequence[Part], target: str) -> str:
    """Returns what is known about a workload that cannot be traced, and what to do."""
    todo = f"Run autofit tune {target} on the device".replace("  ", " ") + " to measure it."
    if not parts:
        return todo
    listed_parts = " + ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts)
    total = format_bytes(sum(part.size_bytes for part in parts))
    return f"At any batch size, it keeps {listed_parts} = {total}; the memory of activations is unknown. {todo}"


def shortfall(least: EstimatedPlan, parts: Breakdown, outside_bytes: int, limit_bytes: int) -> str:
    """Returns how much memory is missing, and what would help."""
    floor = parts.fixed_bytes + outside_bytes
    if floor > limit_bytes:
        listed = ", ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts.standing)
        context = f", {OUTSIDE} {format_bytes(outside_bytes)}" if outside_bytes else ""
        state = next((part.size_bytes for part in parts.standing if part.name == Kind.OPTIMIZER_STATE), 0)
        less = f"an optimizer with less state (SGD without momentum: {format_bytes(state)} less), " if state else ""
        return (
            f"at any batch size, {listed}{context} add up to {format_bytes(floor)}: "
            f"{format_bytes(floor - limit_bytes)} more than the budget of {format_bytes(limit_bytes)}. No knob changes "
            f"that, including checkpointing and precision. What would help: {less}fewer trainable parameters, or more "
            "memory."
        )
    peak = least.peak.value_bytes
    return (
        f"the smallest plan, {least.plan}, needs {format_bytes(peak)}: {format_bytes(peak - limit_bytes)} more "
        f"than the budget of {format_bytes(limit_bytes)}. What would help: shorter or smaller samples, an optimizer "
        "with less state, or more memory."
    )


def unchecked(rows: Sequence[Row], space: SpaceFacts) -> list[str]:
    """Returns the caveat that the choices of these rows were not checked; [] if they keep the arithmetic.

    Args:
        rows: what fits, by choice.
        space: the knobs, the strategies that own them, and the baseline.
    """
    inexact = {knob for each in space.strategies if each.effect != "exact" for knob in each.knobs}
    baseline = space.baseline.values
    names = [row.name for row in rows if row.knob in inexact and not same_value(row.value, baseline.get(row.knob))]
    if not names:
        return []
    return [
        f"whether {', '.join(names)} keeps this model's gradient was not checked; autofit tune checks it on the device"
    ]


def with_accelerator_hint(error: UserCodeError) -> UserCodeError:
    """Returns the error of a factory that needs an accelerator, with advice; any other error unchanged."""
    if not any(sign in f"{error}{error.traceback_text}" for sign in WANTS_ACCELERATOR):
        return error
    return UserCodeError(
        f"{str(error).rstrip('.')}. An estimate uses no accelerator: create the model and the data on the CPU, without "
        ".cuda() or .to(...). autofit moves them to the device.",
        error.traceback_text,
    )
