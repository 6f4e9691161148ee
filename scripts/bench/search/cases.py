"""Cases: tables under a limit, recorded or synthetic, and large spaces, on which searches are scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autofit.core.objective import Objective
from autofit.core.plan import Plan
from scripts.bench.search import large
from scripts.bench.search.large import LargeBench
from scripts.bench.search.large_spaces import LARGE, large_space
from scripts.bench.search.replay import TableBench, limited, peaks_of
from scripts.bench.search.replay.table import Table, read_table
from scripts.bench.search.tables import synthetic
from scripts.bench.search.traps import TRAPS

RECORDED = Path(__file__).resolve().parents[3] / "tests" / "data" / "tables"
TIGHT_RATIO = 1.15
"""The smaller limit of a recorded table, as a multiple of the peak of the baseline."""


@dataclass(frozen=True, slots=True)
class Case:
    """A table under a limit.

    Attributes:
        name: name of the table, with a suffix for a limit other than that of the table.
        about: its peculiarity, in one line.
        table: the table that the search runs on.
        peaks: true peak of each plan by its key, also of plans that do not fit; estimates are made from them.
        device: the device of a large space, whose table has no entries; None for any other.
        scores: mean throughput over many replayed runs, by key, of each plan that fits.
        fastest: the plan with the highest of these throughputs; the baseline if none fits.
        best: the highest of these throughputs.
        grid_s: seconds for probing every plan.
    """

    name: str
    about: str
    table: Table
    peaks: Mapping[str, int]
    objective: Objective
    device: LargeBench | None = None
    scores: Mapping[str, float] = field(init=False)
    fastest: Plan = field(init=False)
    best: float = field(init=False)
    grid_s: float = field(init=False)

    def __post_init__(self) -> None:
        device = self.device
        if device is None:
            scores: Mapping[str, float] = TableBench(self.table).throughputs(self.objective)
            plans = (entry.plan for entry in self.table.entries if entry.plan.key in scores)
            fastest = max(plans, key=lambda plan: scores[plan.key], default=self.table.space.baseline)
            grid_s = sum(entry.outcome.duration_s for entry in self.table.entries)
        else:
            scores, fastest, grid_s = large.scores_of(device), device.best(), device.grid_s
        facts = {"scores": scores, "fastest": fastest, "best": scores.get(fastest.key, 0.0), "grid_s": grid_s}
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def bench(self) -> "TableBench | LargeBench":
        """Returns the virtual device of the searches."""
        return TableBench(self.table) if self.device is None else self.device


def cases(name: str, devices: Sequence[int] = (0,)) -> list[Case]:
    """Returns the cases of a table.

    There is one for a trap, one for each device of a large space, and two for a recorded table: under its own limit and
    a smaller one.

    Args:
        name: the table.
        devices: seeds that determine the costs of the devices of a large space.
    """
    if name in LARGE:
        return [_large(name, large_space(name, seed)) for seed in devices]
    if name in TRAPS:
        made = synthetic(name)
        return [Case(name, made.about, made.table, peaks_of(made.full), Objective())]
    path = RECORDED / f"{name}.json"
    table = read_table(path.read_text(encoding="utf-8"), str(path))
    peaks = peaks_of(table)
    tight = round(TIGHT_RATIO * peaks.get(table.space.baseline.key, 0))
    limits = {name: table, f"{name}-tight": limited(table, tight)} if 0 < tight < table.budget.memory_bytes else {}
    return [Case(key, table.name, found, peaks, table.objective) for key, found in (limits or {name: table}).items()]


def _large(name: str, device: LargeBench) -> Case:
    about, table = LARGE[name].__doc__ or "", large.table_of(name, device)
    return Case(name, about, table, large.peaks_of(device), Objective(), device)


def names() -> list[str]:
    """Returns the names of all tables, the recorded ones first."""
    return [*sorted(path.stem for path in RECORDED.glob("*.json")), *TRAPS]
