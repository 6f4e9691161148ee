"""Records a table: every plan of a workload's search space, measured on this device (DESIGN.md section 7).

Each plan is probed once, in random order. Then rounds of short blocks run all plans that fit, each round in another
random order, so that the drift of the machine does not affect a single plan. With `--close-rounds`, further rounds run
only the plans that are close to the fastest plan that needs no more memory than they do. One recording can then be
scored under smaller limits too, where the fastest of these plans decides the regret of a search.

A grid of all strategies is too large to be recorded: `--strategies`, `--sizes` and `--values` choose a part of it, such
as `--values compile=default --values checkpointed_blocks=2,4`. The values of the baseline are always in it.

Probes run in a child process, as in `autofit tune`, so a crash or a hang costs one entry. After the time limit, Ctrl-C
or `kill -9`, the same command continues the recording. It refuses to mix measurements that may not be compared.

Exit codes: 0 the table is complete, 75 the time limit was reached first, 2 the file holds another table.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import yaml

from autofit.core.briefing import Briefing, Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, UsageError
from autofit.core.knob import Knob
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose
from autofit.core.units import format_duration
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.trial_runner import doubted
from scripts.bench import report
from scripts.bench.search.replay import TableBench, peaks_of
from scripts.bench.search.replay.table import Block, Entry, Table, read_table

SAVE_EVERY_S = 2.0
CLOSE_RATIO = 0.2
"""A plan that is slower by up to this share may still be the fastest: the mean of four blocks was up to 12 % off."""
UNFINISHED = 75
"""Exit code of a command that must be called again to finish (EX_TEMPFAIL in sysexits.h)."""

Evaluate = Callable[[Plan, Purpose], Outcome]


@dataclass
class Recording:
    """A table that is being recorded, and its file.

    Attributes:
        path: file of the table; written at least every `SAVE_EVERY_S` seconds and when `run` ends.
        table: the entries recorded so far.
        rounds: number of blocks of each plan that fits.
        close_rounds: number of blocks of each plan that is within `CLOSE_RATIO` of the fastest under some limit.
        seed: determines the order of plans.
    """

    path: Path
    table: Table
    rounds: int
    seed: int = 0
    close_rounds: int = 0
    _saved_s: float = 0.0

    def run(self, evaluate: Evaluate, clock: Clock, limit_s: float) -> bool:
        """Measures missing entries until the time limit; returns whether the table is complete."""
        entries = {entry.plan.key: entry for entry in self.table.entries}
        try:
            for plan, purpose in self._wanted(entries):
                if clock.elapsed_s >= limit_s:
                    return False
                self._measure(plan, purpose, evaluate, entries)
                self.table = self._with(entries)
                if clock.elapsed_s - self._saved_s > SAVE_EVERY_S:
                    self._saved_s = clock.elapsed_s
                    self.save()
        finally:
            self.save()
        return True

    def _with(self, entries: dict[str, Entry]) -> Table:
        return self.table.model_copy(update={"entries": tuple(entries.values())})

    def _wanted(self, entries: dict[str, Entry]) -> Iterator[tuple[Plan, Purpose]]:
        """Yields the missing runs: first the probes of plans without an entry, then the blocks, round by round."""
        order = random.Random(self.seed)
        yield from ((plan, Purpose.PROBE) for plan in _shuffled(self.table.missing(), order))
        for count in range(self.rounds):
            lacking = [e.plan for e in entries.values() if e.outcome.measured and len(e.blocks) <= count]
            yield from ((plan, Purpose.BLOCK) for plan in _shuffled(lacking, order))
        for count in range(self.rounds, self.close_rounds):
            lacking = [e.plan for e in _close(self._with(entries)) if len(e.blocks) <= count]
            yield from ((plan, Purpose.BLOCK) for plan in _shuffled(lacking, order))

    def _measure(self, plan: Plan, purpose: Purpose, evaluate: Evaluate, entries: dict[str, Entry]) -> None:
        outcome = evaluate(plan, purpose)
        if doubted((), plan, outcome, self.table.budget.memory_bytes).status is Status.AMBIGUOUS:  # as in a search
            outcome = evaluate(plan, purpose)
        outcome = outcome.model_copy(update={"traceback_text": ""})  # contains paths of this machine
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        began = datetime.fromisoformat(self.table.created)
        at_s = round((datetime.now(UTC) - began).total_seconds(), 3)
        if purpose is Purpose.PROBE:
            entries[plan.key] = Entry(plan=plan, at_s=at_s, outcome=outcome)
            return
        entry, measurement = entries[plan.key], outcome.measurement
        if outcome.measured and measurement is not None:
            block = Block.of(measurement, at_s)
        else:
            block = Block(at_s=at_s, reason=f"{outcome.status.value}: {outcome.reason}")
        entries[plan.key] = entry.model_copy(update={"blocks": (*entry.blocks, block)})

    def save(self) -> None:
        """Writes the table and replaces the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(self.table.to_json(), encoding="utf-8")
        new.replace(self.path)


def open_recording(
    path: Path, name: str, briefing: Briefing, space: SpaceFacts, rounds: int, seed: int, close_rounds: int = 0
) -> Recording:
    """Returns a recording that continues the table at `path`, or a new one.

    Raises:
        UsageError: the table has another environment, budget or space.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    fresh = Table(name=name, created=created, environment=briefing.environment, budget=briefing.budget, space=space)
    if not path.exists():
        return Recording(path, fresh, rounds, seed, close_rounds)
    old = read_table(path.read_text(encoding="utf-8"), str(path))
    found = fresh.environment.differences(old.environment)
    if old.budget.memory_bytes != fresh.budget.memory_bytes:
        found.append(f"budget: {fresh.budget.memory_bytes}, was {old.budget.memory_bytes} bytes")
    if old.plans != fresh.plans:
        found.append("the plans differ")
    if found:
        raise UsageError(f"{path} cannot be continued here: {'; '.join(found)}. Give another file, or remove this one.")
    return Recording(path, old, rounds, seed, close_rounds)


def restricted(
    space: SpaceFacts, sizes: Sequence[int] | None, values: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> SpaceFacts:
    """Returns the space with these micro batch sizes and knob values only; those of the baseline are kept.

    Args:
        space: the whole space.
        sizes: the micro batch sizes; None for all.
        values: values as text, by knob; a knob that is not named keeps all of its values.

    Raises:
        UsageError: a size, a knob or a value is not in the space.
    """
    space = space.model_copy(update={"knobs": _kept(space.knobs, values)})
    if sizes is None:
        return space
    unknown = sorted(set(sizes) - set(space.sizes))
    if unknown:
        raise UsageError(f"sizes {unknown} are not in the space; expected some of {', '.join(map(str, space.sizes))}.")
    return space.model_copy(update={"sizes": tuple(sorted({*sizes, space.baseline.micro_batch_size}))})


def _kept(knobs: Sequence[Knob], values: Mapping[str, Sequence[str]]) -> tuple[Knob, ...]:
    """Returns the knobs with some of their values; one that has only its default left stays, with one value."""
    domains = {knob.name: tuple(map(str, knob.values)) for knob in knobs}
    for name, chosen in values.items():
        if unknown := sorted(set(chosen) - set(domains.get(name, ()))):
            known = ", ".join(domains.get(name, domains))
            raise UsageError(f"{name}={','.join(unknown)} is not in the space; expected some of {known}.")
    return tuple(
        knob.only([knob.default, *(v for v in knob.values if str(v) in values.get(knob.name, domains[knob.name]))])
        for knob in knobs
    )


def described(table: Table) -> str:
    """Returns the progress of a table as one line."""
    fits = [entry for entry in table.entries if entry.outcome.measured]
    blocks = min((len(entry.blocks) for entry in fits), default=0)
    best = table.best(Objective())
    fastest = "none fits" if best is None else f"fastest {best.plan} at {best.score(Objective()):.4g} samples/s"
    failed = len(table.entries) - len(fits)
    plans = f"{len(table.entries)} of {len(table.plans)} plans ({failed} failed), {blocks} rounds of blocks"
    return f"{plans}; {fastest}"


def _close(table: Table) -> list[Entry]:
    """Returns the entries of plans that may be the fastest under some limit, corrected for the drift of the machine.

    Limits below the peak of the baseline are left out: no search runs under them.
    """
    scores, peaks = TableBench(table).throughputs(table.objective), peaks_of(table)
    baseline_bytes = peaks.get(table.space.baseline.key, 0)

    def least(key: str) -> float:
        limit_bytes = max(peaks[key], baseline_bytes)
        return (1 - CLOSE_RATIO) * max(score for other, score in scores.items() if peaks[other] <= limit_bytes)

    return [entry for entry in table.entries if (key := entry.plan.key) in scores and scores[key] >= least(key)]


def _shuffled(plans: Sequence[Plan], order: random.Random) -> list[Plan]:
    return order.sample(plans, len(plans))


def _arguments() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("target", help="workload: file.py:function or package.module:function, as for autofit tune")
    parser.add_argument("table", type=Path, help="file of the table; an existing one is continued")
    parser.add_argument("--memory", required=True, help='memory budget, for example "20GiB"')
    parser.add_argument("--name", help="short description of the workload; default: the target")
    parser.add_argument("--device", help='"cuda", "cpu", ...; default: the best available device')
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="argument for the function of the target"
    )
    parser.add_argument("--strategies", help="strategies whose knobs span the grid, as a,b; default: all")
    parser.add_argument("--sizes", help="micro batch sizes of the grid, as 1,2,4; default: all of the space")
    parser.add_argument(
        "--values", action="append", default=[], metavar="KNOB=A,B", help="values of a knob in the grid; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each plan, in addition to its probe")
    parser.add_argument("--close-rounds", type=int, default=0, help="blocks of each plan that is close to the fastest")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop after this many seconds")
    parser.add_argument("--seed", type=int, default=0, help="determines the order of plans")
    return parser.parse_args()


def main() -> None:
    given = _arguments()
    target = Target(
        name=given.target,
        arguments={name: yaml.safe_load(value) for name, _, value in (pair.partition("=") for pair in given.arg)},
        device=given.device,
        options=Options(
            memory_budget=given.memory,
            strategies=None if given.strategies is None else tuple(given.strategies.split(",")),
        ),
    )
    sizes = None if given.sizes is None else [int(size) for size in given.sizes.split(",")]
    values = {name: listed.split(",") for name, _, listed in (pair.partition("=") for pair in given.values)}
    clock = Clock()
    try:
        with RemoteBench(target) as bench:
            space = restricted(bench.briefing.space, sizes, values)
            name = given.name or Path(given.target).name
            rounds, close_rounds = given.rounds, given.close_rounds
            recording = open_recording(given.table, name, bench.briefing, space, rounds, given.seed, close_rounds)
            complete = recording.run(bench.evaluate, clock, given.limit_s)
    except AutofitError as error:
        report.fail(f"record_table: {error}", error.exit_code)
    state = "complete" if complete else "stopped by the time limit; the same command continues"
    summary = f"record_table: {described(recording.table)} in {format_duration(clock.elapsed_s)}: {state}"
    figures = {"table": str(given.table), "complete": complete, "plans": len(recording.table.entries)}
    report.finish(summary, figures, given.json, complete, device=given.device, missed=UNFINISHED)


if __name__ == "__main__":
    main()
