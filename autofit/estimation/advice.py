"""What is said where nothing fits, nothing can be traced, or something was not checked; each with what to do."""

from collections.abc import Sequence

from autofit.core.errors import UserCodeError
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
"""What torch says to code that asks for an accelerator where there is none."""


def untraceable_advice(parts: Sequence[Part], target: str) -> str:
    """Returns what is known of a workload that cannot be traced, and what to do."""
    todo = f"Run autofit tune {target} on the device".replace("  ", " ") + ": it measures."
    if not parts:
        return todo
    listed_parts = " + ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts)
    total = format_bytes(sum(part.size_bytes for part in parts))
    return f"Whatever the batch, it keeps {listed_parts} = {total}; what activations take is not known. {todo}"


def shortfall(least: EstimatedPlan, parts: Breakdown, outside_bytes: int, limit_bytes: int) -> str:
    """Returns by how much nothing fits, and what would help."""
    floor = parts.standing_bytes + outside_bytes
    if floor > limit_bytes:
        listed = ", ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts.standing)
        context = f", {OUTSIDE} {format_bytes(outside_bytes)}" if outside_bytes else ""
        state = next((part.size_bytes for part in parts.standing if part.name == Kind.OPTIMIZER_STATE), 0)
        less = f"an optimizer with less state (SGD without momentum: {format_bytes(state)} less), " if state else ""
        return (
            f"whatever the batch, {listed}{context} make {format_bytes(floor)}: {format_bytes(floor - limit_bytes)} "
            f"more than the budget of {format_bytes(limit_bytes)}. No knob changes that, checkpointing and precision "
            f"included. What would: {less}fewer trainable parameters, or more memory."
        )
    peak = least.peak.value_bytes
    return (
        f"the plan that needs least, {least.plan}, needs {format_bytes(peak)}: {format_bytes(peak - limit_bytes)} more "
        f"than the budget of {format_bytes(limit_bytes)}. What would help: shorter or smaller samples, an optimizer "
        "with less state, or more memory."
    )


def unchecked_precisions(rows: Sequence[Row]) -> list[str]:
    """Returns the caveat that no gate has run for the precisions of these rows; none where there is nothing to say."""
    names = [row.precision for row in rows if row.precision not in ("", "fp32")]
    if not names:
        return []
    return [f"that {', '.join(names)} keeps this model's gradient is only checked by autofit tune, on the device"]


def with_accelerator_hint(error: UserCodeError) -> UserCodeError:
    """Returns the error of a factory that wants an accelerator, with what to do about it; any other as it is."""
    if not any(sign in f"{error}{error.traceback_text}" for sign in WANTS_ACCELERATOR):
        return error
    return UserCodeError(
        f"{str(error).rstrip('.')}. An estimate uses no accelerator: make the function build model and data on the "
        "CPU, without .cuda() or .to(...); autofit moves them where they are to run.",
        error.traceback_text,
    )
