"""Scores searchers on tables, without a device: every searcher on every table with every kind of memory estimate.

Each run is a whole search, with screening, race and proof, on a recorded table (the package `replay`). The tables are
those in `tests/data/tables`, the synthetic ones in `traps.py` and, with `--all` or `--large`, spaces of 2,000 to
200,000 plans (`large_spaces.py`). A searcher is developed on devices from 101 on (`--device`), and scored on device 0.

The scores of a searcher are:

* regret: how much slower the returned plan is than the best plan that fits. The part that is missing even in the best
  plan that ran is "overlooked"; the rest is lost in the final.
* probes, failures and broken promises.
* seconds on the virtual clock, as a share of the time for probing the whole grid.
* milliseconds of CPU time that the loop takes per trial; with `--study`, of wall-clock time.

Required of the default searcher: a 95th percentile of the regret of at most 3 %, and a mean of at most 0.5 % with the
estimates that a search has, and 1 % with others; no broken promise; 20 ms per trial, and 1 s in a large space. With
memory estimates: a median of 12 probes, at most 10 % of the grid's time in the mean, no out-of-memory error in the
median, and at most one. Without: 18 probes, 15 % of the time and at most three. The exit code is 1 otherwise.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from autofit.core.budget import Budget
from autofit.core.plan import Plan
from autofit.study import Study
from scripts.bench import report
from scripts.bench.report import percentile
from scripts.bench.search.cases import Case, cases, names
from scripts.bench.search.large import LargeBench
from scripts.bench.search.large_spaces import LARGE
from scripts.bench.search.replay import TableBench
from scripts.bench.search.runs import (
    ESTIMATORS,
    SEARCHERS,
    Ran,
    Result,
    over_tables,
    rehearse,
    scored,
)

MOST_REGRET, MOST_REGRET_95 = 0.01, 0.03
MOST_REGRET_TRACED = 0.005
"""Largest mean of the regret with the estimates that a search has in `tune`."""
MOST_TRIAL_S = {False: 0.020, True: 1.0}
"""Most seconds of a trial in the loop, by whether the space is large."""
MOST_PROBES = {True: 12, False: 18}
MOST_SHARE = {True: 0.10, False: 0.15}
"""Largest share of the grid's time, with and without memory estimates: without, half as many plans again are probed, to
show their memory."""
MOST_OUT_OF_MEMORY = {True: 1, False: 3}
"""Most out-of-memory errors of a search, with and without memory estimates."""
RESAMPLES = 200

Scores = dict[tuple[str, str, str], list[Result]]
"""The results of each seed, by searcher, estimator and table."""


def play(name: str, given: argparse.Namespace) -> Scores:
    """Returns the results of all searches on one table."""
    found: Scores = defaultdict(list)
    for case in cases(name, given.device):
        bench = case.bench()
        for searcher in given.searcher:
            for estimator in given.estimator:
                found[searcher, estimator, case.name] += [
                    scored(case, _ran(case, bench, searcher, estimator, seed, given)) for seed in range(given.seeds)
                ]
    return dict(found)


def _ran(
    case: Case, bench: TableBench | LargeBench, searcher: str, estimator: str, seed: int, given: argparse.Namespace
) -> Ran:
    budget = Budget(memory_bytes=case.table.budget.memory_bytes, max_trials=given.trials)
    with ExitStack() as stack:
        changes: dict[str, Any] = {"budget": budget}
        if given.study:
            folder = stack.enter_context(TemporaryDirectory())
            # perf_counter includes the time for waiting for the disk
            changes |= {"log": _study(case, Path(folder) / "study.journal"), "now": perf_counter}
        ran = rehearse(case, bench, searcher, estimator, seed, **changes)
    if given.trace:
        print(f"{case.name}, {searcher}, {estimator}, seed {seed}:\n{traced(case, ran)}", flush=True)
    return ran


def _study(case: Case, path: Path) -> Study:
    table = case.table
    return Study(
        path,
        name=case.name,
        environment=table.environment,
        space=table.space,
        objective=case.objective,
        memory_bytes=table.budget.memory_bytes,
    )


def traced(case: Case, ran: Ran) -> str:
    """Returns the runs of a search, without the blocks of the race, one line each with the plan's true speed."""
    limit, lines = case.table.budget.memory_bytes, []

    def true(plan: Plan) -> float:
        return case.scores.get(plan.key, 0.0) / case.best

    for plan, purpose, outcome in ran.runs:
        if purpose == "block":
            continue
        seen = "" if outcome.measurement is None else f"{case.objective.score(outcome.measurement) / case.best:.3f}"
        peak = f"{case.peaks[plan.key] / limit:.2f}" if plan.key in case.peaks else "?"
        lines.append(
            f"  {purpose} {outcome.status.value}: seen {seen or '-'}, true {true(plan):.3f} of the best, "
            f"peak {peak} of the budget: {plan}"
        )
    found = ran.findings
    best = case.fastest
    end = ran.error if found is None else f"{true(found.plan):.3f} with {found.plan}"
    return "\n".join([*lines, f"  returned {end}", f"  best {best}, peak {case.peaks[best.key] / limit:.2f}"])


# Statistics over many seeds.


def interval(groups: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of a statistic of all values; seeds are resampled within each table."""
    chance = random.Random(0)
    drawn = sorted(
        statistic([value for group in groups for value in chance.choices(group, k=len(group))])
        for _ in range(RESAMPLES)
    )
    return percentile(drawn, 0.025), percentile(drawn, 0.975)


def summarised(groups: Sequence[Sequence[Result]], estimator: str, is_large: bool = False) -> dict[str, Any]:
    """Returns the figures of one searcher with one estimator over some tables, and which requirements they miss."""
    flat = [result for group in groups for result in group]
    regrets = [[result.regret for result in group] for group in groups]
    of_all = [result.regret for result in flat]
    failures = [result.out_of_memory for result in flat]
    trials = sum(result.probes + result.skipped for result in flat)
    found: dict[str, Any] = {
        "runs": len(flat),
        "regret": fmean(of_all),
        "regret_interval": interval(regrets, fmean),
        "regret_95": percentile(of_all, 0.95),
        "regret_95_interval": interval(regrets, partial(percentile, share=0.95)),
        "regret_most": max(of_all),
        "overlooked": fmean(result.overlooked for result in flat),
        "probes": median(result.probes for result in flat),
        "probes_most": max(result.probes for result in flat),
        "out_of_memory": median(failures),
        "out_of_memory_most": max(failures),
        "out_of_memory_runs": sum(map(bool, failures)),
        "over_budget": fmean(result.over_budget for result in flat),
        "over_budget_most": max(result.over_budget for result in flat),
        "skipped": median(result.skipped for result in flat),
        "blocks": median(result.blocks for result in flat),
        "charged_s": fmean(result.charged_s for result in flat),
        "share": fmean(result.share for result in flat),
        "broken": sum(bool(result.broken) for result in flat),
        "without_plan": sum(not result.plan for result in flat),
        "trial_s": sum(result.own_s for result in flat) / max(trials, 1),
        "searcher_s": sum(result.searcher_s for result in flat) / max(trials, 1),
    }
    return found | {"missed": missed(found, estimator, is_large)}


def missed(found: dict[str, Any], estimator: str, is_large: bool = False) -> list[str]:
    """Returns the names of the figures that miss a requirement."""
    estimated = estimator != "missing"
    limits = {
        "regret": MOST_REGRET_TRACED if estimator == "traced" else MOST_REGRET,
        "regret_95": MOST_REGRET_95,
        "probes": MOST_PROBES[estimated],
        "out_of_memory_most": MOST_OUT_OF_MEMORY[estimated],
        "share": MOST_SHARE[estimated],
        "broken": 0,
        "trial_s": MOST_TRIAL_S[is_large],
    }
    if estimated:
        limits["out_of_memory"] = 0
    return [name for name, most in limits.items() if found[name] > most]


def in_words(title: str, got: dict[str, Any], whole: bool = False) -> str:
    """Returns figures as one line."""
    low, high = got["regret_interval"]
    low_95, high_95 = got["regret_95_interval"]
    spread = f" ({low:.2%} to {high:.2%})" if whole else ""
    spread_95 = f" ({low_95:.2%} to {high_95:.2%})" if whole else ""
    line = (
        f"{title}: regret {got['regret']:.2%}{spread}, 95th {got['regret_95']:.2%}{spread_95}, most "
        f"{got['regret_most']:.2%}, overlooked {got['overlooked']:.2%}; probes {got['probes']:g} (most "
        f"{got['probes_most']}); out of memory {got['out_of_memory']:g} (most {got['out_of_memory_most']}, in "
        f"{got['out_of_memory_runs']} of {got['runs']}); over budget {got['over_budget']:.1f}; {got['share']:.1%} "
        "of the grid"
    )
    if got["without_plan"]:
        line += f"; no plan in {got['without_plan']} runs"
    if whole:
        line += (
            f"; {1e3 * got['trial_s']:.2f} ms a trial ({1e3 * got['searcher_s']:.2f} in the searcher); "
            f"{got['broken']} broken promises"
        )
    return line + (f"; MISSED {', '.join(got['missed'])}" if got["missed"] else "; ok")


def parse() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=50, help="number of searches of each searcher on each table")
    parser.add_argument("--only", metavar="TABLE", action="append", help="use only this table; may be repeated")
    parser.add_argument("--searcher", metavar="NAME", action="append", help="use only this searcher; may be repeated")
    parser.add_argument(
        "--estimator", metavar="NAME", action="append", help="use only this kind of memory estimate; may be repeated"
    )
    parser.add_argument(
        "--trials", type=int, help="most trials of a search, for searchers that do not stop by themselves"
    )
    parser.add_argument("--study", action="store_true", help="keep trials in a study on disk, as a real search does")
    parser.add_argument("--trace", action="store_true", help="print the runs of each search")
    parser.add_argument("--runs", action="store_true", help="add the result of each search to the JSON file")
    parser.add_argument("--jobs", type=int, default=1, help="number of tables to run in parallel")
    spaces = parser.add_mutually_exclusive_group()
    spaces.add_argument("--large", action="store_true", help="use only the large spaces; they take long")
    spaces.add_argument("--all", action="store_true", help="use the tables and the large spaces")
    parser.add_argument(
        "--device",
        metavar="SEED",
        type=int,
        action="append",
        help="device of each large space, by the seed of its costs; may be repeated; 0 unless given",
    )
    given = parser.parse_args()
    given.device = given.device or [0]
    large = list(LARGE) if given.large or given.all else []
    given.only = given.only or ([] if given.large else names()) + large
    for option, known in (("only", [*names(), *LARGE]), ("searcher", list(SEARCHERS)), ("estimator", list(ESTIMATORS))):
        chosen = getattr(given, option) or known
        if unknown := sorted(set(chosen) - set(known)):
            report.fail(f"search: {', '.join(unknown)} is unknown; expected {', '.join(known)}", 2)
        setattr(given, option, chosen)
    return given


def main() -> None:
    given = parse()
    groups: dict[tuple[str, str], dict[str, list[Result]]] = defaultdict(dict)
    tables: list[dict[str, Any]] = []
    for scores in over_tables(partial(play, given=given), given.only, given.jobs):
        for (searcher, estimator, table), results in scores.items():
            groups[searcher, estimator][table] = results
            got = summarised([results], estimator, table in LARGE)
            print(in_words(f"{searcher}, {estimator}, {table}", got), flush=True)
            tables.append({"searcher": searcher, "estimator": estimator, "table": table, **got})
            if given.runs:
                tables[-1]["results"] = [asdict(result) for result in results]
    whole = {
        key: summarised(list(group.values()), key[1], any(table in LARGE for table in group))
        for key, group in groups.items()
    }
    for (searcher, estimator), got in whole.items():
        print(in_words(f"ALL: {searcher}, {estimator}", got, whole=True), flush=True)
    default = next(iter(SEARCHERS))
    wanted = {estimator: got for (searcher, estimator), got in whole.items() if searcher == default}
    brief = "; ".join(
        f"{estimator}: regret {got['regret']:.2%}, 95th {got['regret_95']:.2%}, {got['probes']:g} probes, at most "
        f"{got['out_of_memory_most']} out of memory, {got['share']:.1%} of the grid"
        for estimator, got in wanted.items()
    )
    passed = not any(got["missed"] for got in wanted.values())
    figures = {
        "seeds": given.seeds,
        "all": [{"searcher": searcher, "estimator": estimator, **got} for (searcher, estimator), got in whole.items()],
        "tables": tables,
    }
    summary = f"search: {default} on {len({t['table'] for t in tables})} tables: {brief or 'not run'}"
    report.finish(f"{summary}: {'ok' if passed else 'MISSED'}", figures, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
