"""Limits: a recorded table under a smaller memory budget."""

from autofit.core.errors import UsageError
from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_bytes
from scripts.bench.search.replay.table import Entry, Table


def limited(table: Table, memory_bytes: int) -> Table:
    """Returns the table as it would have been recorded under a smaller budget.

    A plan whose peak is above the budget is out of memory if the device enforces a budget. A host does not: there the
    plan ran, and is over the budget. Either takes as long as the whole probe, which is an upper bound. A plan near the
    budget may really run slower than recorded, because the allocator flushes its cache; the table does not show this.

    Raises:
        UsageError: the budget is above the table's own, under which some plans did not fit.
    """
    recorded_bytes = table.budget.memory_bytes
    if memory_bytes > recorded_bytes:
        found, most = format_bytes(memory_bytes), format_bytes(recorded_bytes)
        raise UsageError(f"the table {table.name!r} was recorded under {most}; {found} is more. Record it again.")
    enforced = not table.environment.is_host
    entries = tuple(_judged(entry, memory_bytes, enforced) for entry in table.entries)
    budget = table.budget.model_copy(update={"memory_bytes": memory_bytes, "memory_note": "of a recorded table"})
    return table.model_copy(update={"budget": budget, "entries": entries})


def _judged(entry: Entry, memory_bytes: int, enforced: bool) -> Entry:
    measurement = entry.outcome.measurement
    if not entry.outcome.measured or measurement is None or measurement.memory.judged_bytes <= memory_bytes:
        return entry
    found, budget = format_bytes(measurement.memory.judged_bytes), format_bytes(memory_bytes)
    outcome = Outcome(
        status=Status.OUT_OF_MEMORY if enforced else Status.OVER_BUDGET,
        reason=f"its peak {found} is above the budget {budget}",
        measurement=None if enforced else measurement,
        duration_s=entry.outcome.duration_s,
    )
    return entry.model_copy(update={"outcome": outcome, "blocks": ()})
