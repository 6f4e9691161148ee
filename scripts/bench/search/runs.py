"""One search on a table: its input, its result and its score."""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from time import process_time
from typing import Any, TypeVar

from autofit import estimators, searchers
from autofit.core.budget import Budget, Clock
from autofit.core.errors import AutofitError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Omission, SearchSpace
from autofit.core.trial import Purpose, RunTerms, Trial
from autofit.estimators.base import Estimator
from autofit.search.request import Event, Findings, Tuning
from autofit.search.search import run
from autofit.searchers.base import Searcher
from scripts.bench.search.cases import Case
from scripts.bench.search.large import LargeBench
from scripts.bench.search.replay import TableBench, TableEstimator
from scripts.bench.search.simulated import MemoryLog

Found = TypeVar("Found")

SEARCHERS = {member.name: member for member in searchers.members()}
BIAS = 0.1
"""Error of a biased estimate, as a share. Its bounds allow for slightly more, as correct bounds do."""

ESTIMATORS: dict[str, Callable[["Case", int], list[Estimator]]] = {
    "exact": lambda case, seed: [TableEstimator(case.peaks)],
    "biased": lambda case, seed: [TableEstimator(case.peaks, _bias(case, seed), error_ratio=BIAS + 0.02)],
    "traced": lambda case, seed: [TableEstimator(case.peaks, error_ratio=0.04, at_once=False)],
    "missing": lambda case, seed: [],
}
"""Memory estimates in addition to the plans that ran. "exact": every plan, exactly. "biased": every plan, 10 % too high
or too low. "traced": as traces give them, at first for the baseline's combination and single changes of it, and for
every other plan once it is looked at. "missing": none."""


@dataclass(slots=True)
class Ran:
    """Record of one search.

    Attributes:
        runs: each plan that ran with its purpose and outcome, in order.
        skipped: number of plans that the searcher proposed and screening rejected.
        findings: result of the search; None if it failed, with the reason in `error`.
        charged_s: seconds of the virtual clock.
        device_s, searcher_s, whole_s: seconds spent in the device, in the searcher and in total, on the clock `now`.
        now: clock of these times; CPU time by default, which other processes do not affect.
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
        """Returns how many runs ended with one of these statuses."""
        return sum(outcome.status in statuses for _, _, outcome in self.runs)


@dataclass(frozen=True, slots=True)
class Result:
    """Score of one search.

    Attributes:
        regret: how much slower the returned plan is than the best plan that fits; 1 if none was returned.
        overlooked: how much slower the best plan that ran is than the best plan that fits. This part of the regret is
            due to the searcher; the rest is lost in the final, to noise and to the rule on ties.
        probes: number of plans that were probed.
        out_of_memory, over_budget: number of runs, of any purpose, with this outcome.
        charged_s: seconds of the virtual clock, race and proof included.
        share: `charged_s` as a share of the time for probing every plan.
        broken: broken promises: the plan was not proven, or is not inside the budget.
        own_s: seconds spent in the loop, the searcher and the trial log.
        searcher_s: part of `own_s` that was spent in the searcher.
        plan: the returned plan; empty if there is none, with the reason in `error`.
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


def over_tables(play: Callable[[str], Found], chosen: Sequence[str], jobs: int) -> Iterator[Found]:
    """Yields the result of `play` for each table, with `jobs` tables at a time."""
    if jobs == 1:
        yield from map(play, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, chosen)


def rehearse(case: Case, bench: TableBench | LargeBench, searcher: str, estimator: str, seed: int, **given: Any) -> Ran:
    """Runs a whole search on a table: searcher, screening, race and proof.

    Args:
        case: the table.
        bench: bench of the table; it is rewound.
        searcher: name of the searcher.
        estimator: name of the memory estimates, a key of `ESTIMATORS`.
        seed: determines the noise, the bias and the choices of the searcher.
        given: replacements for fields of the tuning; also `now`, the clock for the time spent in the loop, and
            `bursts`, which slow the machine down.
    """
    ran = Ran(now=given.pop("now", process_time))
    bench.rewind(seed, given.pop("bursts", None))

    def evaluate(plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        began = ran.now()
        outcome = bench.evaluate(plan, purpose, terms)
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
    """Returns the score of a search."""
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
    if not any(p == plan and _proves(why, outcome) for p, why, outcome in ran.runs):
        found.append("not proven")
    if plan.key not in case.scores or case.peaks[plan.key] > case.table.budget.memory_bytes:
        found.append("not inside the budget")
    return tuple(found)


def _proves(purpose: Purpose, outcome: Outcome) -> bool:
    found = outcome.measurement
    return outcome.measured and found is not None and (purpose is Purpose.PROOF or found.proven)


class _Timed(Searcher):
    """A searcher whose real time is measured."""

    name = "timed"

    def __init__(self, searcher: Searcher, ran: Ran) -> None:
        super().__init__(searcher.problem)
        self._searcher, self._ran = searcher, ran

    def ask(self) -> Plan | None:
        return self._timed(self._searcher.ask)

    def tell(self, trial: Trial) -> None:
        self._timed(lambda: self._searcher.tell(trial))

    def omissions(self) -> list[Omission]:
        return self._timed(self._searcher.omissions)

    def expected_s(self, plan: Plan) -> float | None:
        return self._timed(lambda: self._searcher.expected_s(plan))

    def expected_gain(self, plan: Plan) -> float | None:
        return self._timed(lambda: self._searcher.expected_gain(plan))

    def leave_out(self, refused: Callable[[Plan], bool]) -> None:
        self._timed(lambda: self._searcher.leave_out(refused))

    def _timed(self, call: Callable[[], Found]) -> Found:
        began = self._ran.now()
        try:
            return call()
        finally:
            self._ran.searcher_s += self._ran.now() - began


def _bias(case: Case, seed: int) -> float:
    return random.Random(f"{case.name} {seed}").choice((1 - BIAS, 1 + BIAS))
