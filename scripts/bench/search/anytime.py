"""Scores searches under a time budget on recorded and generated timelines: what the answer is worth at each second.

    python -m scripts.bench.search.anytime                   # the table, and the requirements
    python -m scripts.bench.search.anytime --searches 2000 --jobs 2

Fails if a search whose baseline ran ends without an answer, if the median regret on a timeline of `BOUNDED` is above
`MOST_REGRET`, if the answer on another of the H100 does not beat the baseline from `USEFUL_S` on, or if a search takes
longer than its budget allows.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autofit import estimators
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S, Budget, Clock
from autofit.core.errors import AutofitError
from autofit.core.objective import Objective
from autofit.search.request import Findings, Tuning
from autofit.search.search import run
from scripts.bench import files
from scripts.bench.search import timelines
from scripts.bench.search.runs import SEARCHERS
from scripts.bench.search.simulated import MemoryLog
from scripts.bench.search.timeline_bench import TimelineBench, TracedPeaks

BUDGETS_S = (15, 30, 60, 90, 120, 300, 600)
"""Time budgets of the searches."""
GENERATED, RANGES_S = "generated", ((15, 60), (60, 200), (200, 600))
"""Name of all generated timelines, and the ranges of budgets by which their searches are counted."""
MOST_REGRET = {60: 0.10, 90: 0.05, 120: 0.02, 300: 0.01}
"""Largest median regret of the answer on the timelines of `BOUNDED`, by time budget in seconds."""
BOUNDED = ("h100_convnext", "h100_llama")
"""Timelines whose models compile early enough for these bounds. The blocks of Swin-T took 69 to 76 s."""
USEFUL_S = 60.0
"""Time budget from which the answer beats the baseline on every timeline of the H100."""
SEEDS = 20
"""Number of searches for each recorded timeline and budget."""
ACCELERATOR_NOISE, HOST_NOISE = 0.015, 0.15
"""As `autofit.search.search` sets `Tuning.noise_ratio`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One search.

    Attributes:
        name: name of the timeline; `GENERATED` for all that are generated.
        budget_s: its time budget.
        answered: whether it returned a plan.
        ran: whether a whole step of the baseline ended.
        regret: how much slower the answer is than the fastest plan that fits; 1 without an answer.
        better_s: seconds from the end of the opening to the first answer that beats the baseline; infinity without one.
        over_s: seconds beyond the time budget.
        error: the error without an answer.
        number: of the device or the seed, to repeat the search.
    """

    name: str
    budget_s: float
    answered: bool
    ran: bool
    regret: float
    better_s: float
    over_s: float
    error: str
    number: int


def searched(bench: TimelineBench, budget_s: float, seed: int) -> tuple[Findings | None, str]:
    """Returns the result of a whole search under a time budget, or the error."""
    bench.begin(seed, budget_s)
    clock = Clock(bench.time, budget_s, start=0.0)
    tuning = Tuning(
        space=bench.space,
        evaluate=bench.evaluate,
        objective=Objective(),
        budget=Budget(memory_bytes=bench.budget_bytes, time_s=budget_s, requested=False),
        log=MemoryLog(),
        searcher=SEARCHERS["guided"],
        estimators=[TracedPeaks(bench), estimators.Measured()],
        clock=clock,
        listen=lambda event: None,
        seed=seed,
        cautious=bench.host,
        isolated=True,
        noise_ratio=HOST_NOISE if bench.host else ACCELERATOR_NOISE,
        check=bench.check,
    )
    try:
        return run(tuning), ""
    except AutofitError as error:
        return None, f"{type(error).__name__}: {error}"


def scored(name: str, bench: TimelineBench, budget_s: float, seed: int, number: int) -> Scored:
    """Returns the score of one search."""
    found, error = searched(bench, budget_s, seed)
    own_per_s = bench.samples_per_s(bench.space.baseline)
    answers = found.answers if found is not None else ()
    better = [each.at_s for each in answers if bench.samples_per_s(each.plan) > own_per_s]
    return Scored(
        name=name,
        budget_s=budget_s,
        answered=found is not None,
        ran=bench.steps > 0,
        regret=1.0 if found is None else 1 - bench.samples_per_s(found.plan) / bench.best_per_s(),
        better_s=min(better, default=math.inf) - bench.costs.open_s,
        over_s=bench.time.seconds - budget_s,
        error=error,
        number=number,
    )


def _of_recorded(task: tuple[str, float, int]) -> list[Scored]:
    name, budget_s, seeds = task
    bench = TimelineBench.of(timelines.read(timelines.FOLDER / f"{name}.json"))
    return [scored(name, bench, budget_s, seed, seed) for seed in range(seeds)]


def _of_generated(number: int) -> list[Scored]:
    bench = TimelineBench.generated(number)
    budget_s = math.exp(random.Random(f"budget {number}").uniform(math.log(15), math.log(600)))
    return [scored("generated", bench, budget_s, number, number)]


def all_scores(searches: int, jobs: int, seeds: int) -> Iterator[Scored]:
    """Yields the scores: of the recorded timelines at each budget, then of generated ones up to `searches` in all."""
    tasks = [(each.name, float(budget_s), seeds) for each in timelines.recorded() for budget_s in BUDGETS_S]
    left = range(max(searches - seeds * len(tasks), 0))
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_of_recorded, tasks):
            yield from found
        for found in pool.map(_of_generated, left, chunksize=8):
            yield from found


def rows(scores: Sequence[Scored]) -> list[list[Any]]:
    """Returns the table: for each timeline and budget the regret in the median and at the 95th percentile."""
    found = []
    for name in dict.fromkeys(each.name for each in scores):
        for low_s, high_s in RANGES_S if name == GENERATED else [(s, s) for s in BUDGETS_S]:
            some = [each for each in scores if each.name == name and low_s <= each.budget_s <= high_s]
            ran = [each for each in some if each.ran]
            if ran:
                regrets = sorted(each.regret for each in ran)
                worst = regrets[min(int(0.95 * len(regrets)), len(regrets) - 1)]
                text = f"{high_s}" if low_s == high_s else f"{low_s} to {high_s}"
                without = sum(not each.answered for each in ran)
                found.append([name, text, len(some), len(some) - len(ran), without, median(regrets), worst])
    return found


def failures(scores: Sequence[Scored]) -> list[str]:
    """Returns the requirements that are not met."""
    found = [
        f"{each.name} {each.number}, {each.budget_s:.0f} s: no answer, {each.error}"
        for each in scores if each.ran and not each.answered
    ]  # fmt: skip
    found += [
        f"{each.name} {each.number}, {each.budget_s:.0f} s: {each.over_s:.1f} s over the budget"
        for each in scores if each.over_s > OVERTIME_RATIO * each.budget_s + OVERTIME_S
    ]  # fmt: skip
    found += [
        f"{each.name} {each.number}, {each.budget_s:.0f} s: no answer that beats the baseline"
        for each in scores
        if each.name.startswith("h100") and each.budget_s >= USEFUL_S and math.isinf(each.better_s)
    ]
    for name in BOUNDED:
        for budget_s, most in MOST_REGRET.items():
            regrets = [each.regret for each in scores if each.name == name and each.budget_s == budget_s]
            if regrets and (regret := round(median(regrets), 3)) > most:
                found.append(f"{name}, {budget_s} s: regret {regret:.1%}, expected at most {most:.0%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=2000, help="number of searches (%(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="searches by recorded timeline and budget (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--json", help="file for the scores")
    given = parser.parse_args()
    scores = list(all_scores(given.searches, given.jobs, given.seeds))
    print("| timeline | budget in s | searches | baseline did not run | no answer | regret, median | 95 % |")
    print("|---|---|---|---|---|---|---|")
    for *texts, middle, worst in rows(scores):
        print(f"| {' | '.join(map(str, texts))} | {middle:.1%} | {worst:.1%} |")
    if given.json:
        files.write(Path(given.json), json.dumps([asdict(each) for each in scores]))
    missed = failures(scores)
    for text in missed[:20]:
        print(f"missed: {text}", file=sys.stderr)
    print(f"{len(scores)} searches, {len(missed)} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
