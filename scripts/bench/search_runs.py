"""One search on a table: what it is given, what came of it, and what that is worth."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # the fake device and the tables made with it belong to the tests

from autofit import estimators, searchers  # noqa: E402  # the path comes first
from autofit.core.budget import Budget, Clock  # noqa: E402
from autofit.core.errors import AutofitError  # noqa: E402
from autofit.core.objective import Objective  # noqa: E402
from autofit.core.omission import Omission  # noqa: E402
from autofit.core.outcome import Outcome, Status  # noqa: E402
from autofit.core.plan import Plan  # noqa: E402
from autofit.core.space import SearchSpace  # noqa: E402
from autofit.core.trial import Purpose, Trial  # noqa: E402
from autofit.estimators.base import Estimator  # noqa: E402
from autofit.replay import TableBench, TableEstimator, limited, peaks_of  # noqa: E402
from autofit.replay.table import Table, read_table  # noqa: E402
from autofit.search.event import Event  # noqa: E402
from autofit.search.phases import run  # noqa: E402
from autofit.search.tuning import Findings, Tuning  # noqa: E402
from autofit.searchers.base import Searcher  # noqa: E402
from tests.fakes import MemoryLog  # noqa: E402
from tests.tables import TRAPS, synthetic  # noqa: E402

Answer = TypeVar("Answer")

RECORDED = ROOT / "tests" / "data" / "tables"
SEARCHERS = {member.name: member for member in searchers.members()}
BIAS = 0.1
"""What a biased prediction is off by; its bounds allow for a little more, as an honest prediction's do."""
TIGHT_RATIO = 1.15
"""The smaller limit of a recorded table is so many times what the user's own setting needs."""

ESTIMATORS: dict[str, Callable[["Case", int], list[Estimator]]] = {
    "exact": lambda case, seed: [TableEstimator(case.peaks)],
    "biased": lambda case, seed: [TableEstimator(case.peaks, _bias(case, seed), error_ratio=BIAS + 0.02)],
    "traced": lambda case, seed: [TableEstimator(case.peaks, error_ratio=0.04, at_once=False)],
    "missing": lambda case, seed: [],
}
"""What predicts memory beside the plans that ran: every plan exactly; every plan 10 % too high or too low; as traces,
the user's own combination and single changes at first and each plan once it is asked for; nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """A table under a limit.

    Attributes:
        name: of the table, and of the limit where it is not the table's own.
        about: what is odd about it.
        table: what the search runs on.
        peaks: what predictions are made from; with the plans that do not fit.
        scores: throughput of each plan that fits, by its key, as many runs of the replay average to.
        best: the highest of them.
        grid_s: what it costs to probe every plan.
    """

    name: str
    about: str
    table: Table
    peaks: dict[str, int]
    objective: Objective
    scores: dict[str, float] = field(init=False)
    best: float = field(init=False)
    grid_s: float = field(init=False)

    def __post_init__(self) -> None:
        scores = TableBench(self.table).throughputs(self.objective)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "best", max(scores.values(), default=0.0))
        object.__setattr__(self, "grid_s", sum(entry.outcome.duration_s for entry in self.table.entries))


@dataclass(slots=True)
class Ran:
    """What happened in one search.

    Attributes:
        runs: what ran, and what became of it, in order.
        skipped: plans that were asked for and screened out.
        findings: what was found; None, with the error, when nothing was.
        charged_s: seconds of the virtual clock.
        device_s, searcher_s, whole_s: seconds of `now` inside the device, inside the searcher, and in all.
        now: the clock of these; the processor's own does not count what else runs on the machine.
    """

    runs: list[tuple[Plan, Purpose, Outcome]] = field(default_factory=list)
    skipped: int = 0
    findings: Findings | None = None
    error: str = ""
    charged_s: float = 0.0
    device_s: float = 0.0
    searcher_s: float = 0.0
    whole_s: float = 0.0
    now: Callable[[], float] = process_time

    def count(self, *statuses: Status) -> int:
        """Returns how many runs ended with one of these."""
        return sum(outcome.status in statuses for _, _, outcome in self.runs)


@dataclass(frozen=True, slots=True)
class Result:
    """What one search is worth.

    Attributes:
        regret: how much slower the returned plan is than the best that fits; 1 when none was returned.
        overlooked: how much slower the best plan that ran is: the part of the regret that is the searcher's own; the
            rest is lost in the final, to noise and to the rule on ties.
        probes: plans that were run in the search. out_of_memory, over_budget: runs of any purpose that ended so.
        charged_s: seconds of the virtual clock, race and proof included.
        share: of what probing every plan costs.
        broken: promises that were broken: the plan was not proven, or is not inside the budget.
        own_s: seconds of loop, searcher and trial log; searcher_s: the searcher's part.
        plan: the returned plan; empty, with the error, when there is none.
    """

    regret: float
    overlooked: float
    probes: int
    out_of_memory: int
    over_budget: int
    skipped: int
    blocks: int
    charged_s: float
    share: float
    broken: tuple[str, ...]
    own_s: float
    searcher_s: float
    plan: str
    error: str = ""


def cases(name: str) -> list[Case]:
    """Returns the cases of a table: a trap's one, or a recorded table under its own limit and a smaller one."""
    if name in TRAPS:
        made = synthetic(name)
        return [Case(name, made.about, made.table, peaks_of(made.full), Objective())]
    path = RECORDED / f"{name}.json"
    table = read_table(path.read_text(encoding="utf-8"), str(path))
    peaks = peaks_of(table)
    tight = round(TIGHT_RATIO * peaks.get(table.space.baseline.key, 0))
    limits = {name: table, f"{name}-tight": limited(table, tight)} if 0 < tight < table.budget.memory_bytes else {}
    return [Case(key, table.name, found, peaks, table.objective) for key, found in (limits or {name: table}).items()]


def names() -> list[str]:
    """Returns the names of all tables, the recorded ones first."""
    return [*sorted(path.stem for path in RECORDED.glob("*.json")), *TRAPS]


def over_tables(play: Callable[[str], Answer], chosen: Sequence[str], jobs: int) -> Iterator[Answer]:
    """Yields what `play` makes of each table, as many at a time as there are jobs."""
    if jobs == 1:
        yield from map(play, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, chosen)


def rehearse(case: Case, bench: TableBench, searcher: str, estimator: str, seed: int, **given: Any) -> Ran:
    """Runs the whole of a search on a table: the searcher, the screening, the race and the proof.

    Args:
        case: the table.
        bench: of the table; rewound.
        searcher: its name. estimator: the name of what predicts memory.
        seed: decides the noise, the bias and the searcher's own choices.
        given: replaces fields of the tuning; and `now`, the clock that takes the loop's own time; and `bursts`, which
            slow the machine.
    """
    ran = Ran(now=given.pop("now", process_time))
    bench.rewind(seed, given.pop("bursts", None))

    def evaluate(plan: Plan, purpose: Purpose) -> Outcome:
        began = ran.now()
        outcome = bench.evaluate(plan, purpose)
        ran.runs.append((plan, purpose, outcome))
        ran.device_s += ran.now() - began
        return outcome

    def listen(event: Event) -> None:
        ran.skipped += event.kind == "skipped"

    fields: dict[str, Any] = {
        "space": SearchSpace(case.table.space),
        "evaluate": evaluate,
        "objective": case.objective,
        "budget": Budget(memory_bytes=case.table.budget.memory_bytes),
        "log": MemoryLog(),
        "searcher": lambda problem: _Timed(SEARCHERS[searcher](problem), ran),
        "estimators": [*ESTIMATORS[estimator](case, seed), estimators.Measured()],
        "clock": Clock(bench.time),
        "listen": listen,
        "seed": seed,
        "cautious": case.table.environment.device_type == "cpu",
    }
    began = ran.now()
    try:
        ran.findings = run(Tuning(**(fields | given)))
    except AutofitError as error:
        ran.error = f"{type(error).__name__}: {error}"
    ran.whole_s = ran.now() - began
    ran.charged_s = bench.time.seconds
    return ran


def scored(case: Case, ran: Ran) -> Result:
    """Returns what a search is worth."""
    plan = None if ran.findings is None else ran.findings.plan
    seen = {run_plan for run_plan, _, _ in ran.runs} | ({plan} if plan is not None else set())
    tried = max((case.scores.get(each.key, 0.0) for each in seen), default=0.0)
    return Result(
        regret=1 - (0.0 if plan is None else case.scores.get(plan.key, 0.0)) / case.best,
        overlooked=1 - tried / case.best,
        probes=sum(purpose is Purpose.PROBE for _, purpose, _ in ran.runs),
        out_of_memory=ran.count(Status.OUT_OF_MEMORY, Status.OUT_OF_HOST_MEMORY),
        over_budget=ran.count(Status.OVER_BUDGET),
        skipped=ran.skipped,
        blocks=sum(purpose is Purpose.BLOCK for _, purpose, _ in ran.runs),
        charged_s=ran.charged_s,
        share=ran.charged_s / case.grid_s,
        broken=_broken(case, ran, plan),
        own_s=ran.whole_s - ran.device_s,
        searcher_s=ran.searcher_s,
        plan="" if plan is None else str(plan),
        error=ran.error,
    )


def _broken(case: Case, ran: Ran, plan: Plan | None) -> tuple[str, ...]:
    """Returns the promises that the returned plan breaks."""
    if plan is None:
        return ()
    found = []
    if not any(p == plan and why is Purpose.PROOF and outcome.measured for p, why, outcome in ran.runs):
        found.append("not proven")
    if plan.key not in case.scores or case.peaks[plan.key] > case.table.budget.memory_bytes:
        found.append("not inside the budget")
    return tuple(found)


class _Timed(Searcher):
    """A searcher whose real seconds are counted."""

    name = "timed"

    def __init__(self, searcher: Searcher, ran: Ran) -> None:
        super().__init__(searcher.problem)
        self._searcher, self._ran = searcher, ran

    def ask(self) -> Plan | None:
        return self._timed(self._searcher.ask)

    def still(self, plan: Plan) -> bool:
        return self._timed(lambda: self._searcher.still(plan))

    def vouches(self, plan: Plan) -> bool:
        return self._timed(lambda: self._searcher.vouches(plan))

    def tell(self, trial: Trial) -> None:
        self._timed(lambda: self._searcher.tell(trial))

    def omissions(self) -> list[Omission]:
        return self._timed(self._searcher.omissions)

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        began = self._ran.now()
        try:
            return call()
        finally:
            self._ran.searcher_s += self._ran.now() - began


def _bias(case: Case, seed: int) -> float:
    return random.Random(f"{case.name} {seed}").choice((1 - BIAS, 1 + BIAS))
