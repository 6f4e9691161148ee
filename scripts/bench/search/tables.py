"""Synthetic tables with known traps: recordings of the simulated device, made plan by plan as on a real device.

A synthetic table is recorded without a limit and then judged under one, so that the peak of every plan is known. The
blocks of a plan average to its true speed: the replay is noisy, the truth that a search is scored against is not.
"""

import random
from dataclasses import dataclass, replace

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from scripts.bench.search.replay import TableBench, limited
from scripts.bench.search.replay.table import Block, Entry, Table
from scripts.bench.search.simulated import FakeBench
from scripts.bench.search.traps import HOST_PRECISION, TRAPS

UNLIMITED_BYTES = 2**50


@dataclass(frozen=True)
class Synthetic:
    """A table with a trap.

    Attributes:
        name: name of the trap.
        about: description of the trap, in one line.
        full: the table without a limit, with the peak of every plan.
        bench: the simulated device with the limit; it knows the true values.
    """

    name: str
    about: str
    full: Table
    bench: FakeBench

    @property
    def table(self) -> Table:
        """The table under its limit. Replayed runs scatter around the true values."""
        return centred(limited(self.full, self.bench.budget_bytes), self.bench)


def synthetic(name: str, seed: int = 0) -> Synthetic:
    """Returns the table of a trap in `TRAPS`; it is the same for the same seed."""
    make = TRAPS[name]
    bench = make(random.Random(f"{name} {seed}"))
    return Synthetic(name, (make.__doc__ or "").strip(), record(bench, name, seed), bench)


def record(bench: FakeBench, name: str, seed: int = 0, rounds: int = 3) -> Table:
    """Returns the complete table of a simulated device without a limit: a probe of each plan, then rounds of blocks."""
    device = replace(bench, budget_bytes=UNLIMITED_BYTES, seed=bench.seed + seed)
    host = HOST_PRECISION in bench.space.facts.knobs
    table = Table(
        name=name,
        created="2026-01-01T00:00:00+00:00",
        environment=Environment(
            workload=name, device_type="cpu" if host else "fake", device_name="Fake", capacity_bytes=UNLIMITED_BYTES
        ),
        budget=Budget(memory_bytes=UNLIMITED_BYTES),
        space=bench.space.facts,
    )
    chance, outcomes = random.Random(seed), dict[Plan, tuple[Outcome, float]]()
    blocks: dict[Plan, list[Block]] = {}
    for plan in chance.sample(table.plans, len(table.plans)):
        outcomes[plan] = (device.evaluate(plan, Purpose.PROBE), device.time.seconds)
        blocks[plan] = []
    ran = [plan for plan, (outcome, _) in outcomes.items() if outcome.measured]
    for _ in range(rounds):
        for plan in chance.sample(ran, len(ran)):
            measurement = device.evaluate(plan, Purpose.BLOCK).measurement
            assert measurement is not None
            blocks[plan].append(Block(at_s=device.time.seconds, step_times_s=measurement.step_times_s))
    entries = [
        Entry(plan=p, at_s=at_s, outcome=outcome, blocks=tuple(blocks[p])) for p, (outcome, at_s) in outcomes.items()
    ]
    return table.model_copy(update={"entries": tuple(entries)})


def centred(table: Table, device: FakeBench) -> Table:
    """Returns the table with the blocks of each plan scaled by one factor, so that they average to the true speed."""
    found = TableBench(table).throughputs(Objective())

    def scaled(entry: Entry) -> Entry:
        if not entry.blocks:
            return entry
        factor = found[entry.plan.key] / device.samples_per_s(entry.plan)
        blocks = (
            b.model_copy(update={"step_times_s": tuple(t * factor for t in b.step_times_s)}) for b in entry.blocks
        )
        return entry.model_copy(update={"blocks": tuple(blocks)})

    return table.model_copy(update={"entries": tuple(scaled(entry) for entry in table.entries)})
