"""A realistic search without a device: a recorded table answers its runs, and small synthetic traces its estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from autofit.core.account import Account
from autofit.core.briefing import Briefing, GateRecord
from autofit.core.budget import Clock
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Kind, Trace
from autofit.search import race_and_proof
from autofit.search import search as one_search
from autofit.search.evidence import SearchResult
from autofit.search.request import Event, Listen, Request
from autofit.search.search import search
from scripts.bench.search.replay import TableBench, limited, peaks_of
from scripts.bench.search.replay.table import Table, read_table
from tests.memory.traces import Script

TABLES = Path(__file__).parent / "data" / "tables"
MIB = 2**20
WHOLE = ((one_search, "TRACING_S", one_search.TRACING_S), (race_and_proof, "RACE_S", race_and_proof.RACE_S))
"""The limits of a user's search, read before tests/conftest.py lowers them."""
GATES = (
    GateRecord(name="precision=bf16", passed=True, reason="cosine of the gradient 0.99991 (at least 0.999)"),
    GateRecord(name="accumulation", passed=False, reason="relative L2 of the gradient 0.31 (at most 0.001)"),
)
REFUSED = (Refusal(name="accumulation", reason="relative L2 of the gradient 0.31 (at most 0.001)"),)


@cache
def table(name: str) -> Table:
    """Returns a table of tests/data/tables."""
    return read_table((TABLES / f"{name}.json").read_text(), name)


@dataclass
class RecordedBench:
    """A recorded table as a bench.

    Attributes:
        found: the table.
        traces: whether plans can be traced.
        device: runs plans; its `time` is the clock of the search.
    """

    found: Table
    traces: bool = True
    proof_start_s: float = 0.0
    device: TableBench = field(init=False)

    def __post_init__(self) -> None:
        self.device = TableBench(self.found)
        self._peaks = peaks_of(self.found)

    @property
    def briefing(self) -> Briefing:
        """What is known before the first probe."""
        return Briefing(
            space=self.found.space.model_copy(update={"refused": REFUSED}),
            environment=self.found.environment,
            budget=self.found.budget,
            enforced=not self.found.environment.is_host,
            account=Account(allocator="host") if self.traces else None,
            caveats=("the loss was inferred: cross-entropy",),
        )

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan."""
        return self.device.evaluate(plan, purpose, terms)

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns that the plan keeps the gradient, with the verdicts of `GATES`."""
        return Checked(verdicts={each.name: GateVerdict(passed=each.passed, reason=each.reason) for each in GATES})

    def trace(self, plan: Plan) -> Trace:
        """Returns two steps whose peak is on the line through the recorded peaks of the combination."""
        known = {
            e.plan.micro_batch_size: self._peaks[e.plan.key]
            for e in self.found.entries
            if e.plan.combination == plan.combination and e.plan.key in self._peaks
        }
        low, high = min(known), max(known)
        slope = (known[high] - known[low]) // (high - low)
        static = max(known[low] - slope * low, MIB)
        script = Script(plan.micro_batch_size, ("", *(f"blocks.{number}" for number in range(8)), "head"))
        script.take(static // 2, Kind.PARAMETER, 0)
        script.take(static - static // 2, Kind.OPTIMIZER_STATE, 0)
        for number in (1, 2):
            script.mark(f"step {number} forward")
            kept = [script.take(slope * plan.micro_batch_size // 10, Kind.ACTIVATION, at) for at in range(1, 10)]
            script.mark(f"step {number} backward")
            script.moment(slope * plan.micro_batch_size // 10)
            script.give(*reversed(kept))
            script.mark(f"step {number} optimizer")
            script.moment(1024)
        return script.trace()


def recorded_search(
    study: str | Path = ":memory:",
    name: str = "resnet",
    *,
    memory_bytes: int | None = None,
    traces: bool = True,
    listen: Sequence[Listen] = (),
    request: Request | None = None,
) -> SearchResult:
    """Returns what one search of a table finds; an error of the search is in the evidence alone.

    The search traces and races as long as a user's does: on the clock of a table that takes no time.

    Args:
        study: where its trials go.
        name: of the table.
        memory_bytes: a smaller budget than the table's own; None for that.
        traces: whether plans can be traced.
        listen: further listeners.
        request: what is asked; None for little.
    """
    found = table(name) if memory_bytes is None else limited(table(name), memory_bytes)
    bench, results = RecordedBench(found, traces), list[SearchResult]()

    def keep(event: Event) -> None:
        if event.result is not None:
            results.append(event.result)

    asked = request or Request(title=f"train.py:make_{name}", command=f"autofit tune train.py:make_{name}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for module, limit, seconds in WHOLE:
                patch.setattr(module, limit, seconds)
            search(bench, replace(asked, study=study), [keep, *listen], Clock(bench.device.time))
    finally:
        assert len(results) == 1
    return results[0]
