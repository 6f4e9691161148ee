"""Plainer: the same plan without what trades time for memory, which goes first where it is likely to fit.

A search knows the cost of recomputation roughly before it has probed any. A plan with recomputation that promises as
much as the same plan without it would otherwise run in its place, and show less.
"""

from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SpaceFacts


def plainer(space: SpaceFacts, plan: Plan) -> Plan | None:
    """Returns the plan with every technique that trades time for memory left out; None if it has none."""
    traded = {knob.name for knob in space.knobs if knob.trades_memory and plan.values[knob.name] != knob.default}
    left_out = {name for record in space.strategies if traded.intersection(record.knobs) for name in record.knobs}
    values: dict[str, KnobValue] = {knob.name: knob.default for knob in space.knobs if knob.name in traded | left_out}
    return plan.replace(**values) if traded else None
