"""Scores the claims of searches on a disturbed machine: how often the true gain lies in the claimed interval.

Whole searches are replayed on the tables of `scripts/bench/search`, on a machine that other processes use in bursts,
with time budgets from short to unlimited. The true throughput of a plan is the mean of many replayed runs without
bursts. Only a search that recommends a change makes a claim. The regret, the number of raced claims and the width of
the intervals are reported beside the coverage, because a very wide interval covers everything.

Required: at least 93 % of the claims hold. The exit code is 1 otherwise.
"""

import argparse
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

from autofit.core.budget import Budget
from scripts.bench import report
from scripts.bench.search.cases import Case, cases, names
from scripts.bench.search.replay import Bursts, TableBench
from scripts.bench.search.runs import over_tables, rehearse

LEAST_HELD = 0.93
TIMES: tuple[float | None, ...] = (8.0, 12.0, 18.0, 30.0, None)
"""Time budgets, as multiples of the median probe; None for no limit."""
CALM_PROBES, BURST_PROBES, MOST_LOG = 4.0, 4.0, 1.1
"""Mean time between two bursts and mean length of a burst, in probes; the strongest burst triples the step time."""
BLOCK_RATIO = 0.4
"""Cost of a block apart from its steps, as a share of a probe: each block builds the step and restores all state."""
ALLOWANCE_RATIO = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one search, and the truth.

    Attributes:
        table: name of the case.
        time_ratio: time budget as a multiple of the median probe.
        claimed: whether the search recommended a change and claimed a gain.
        gain: claimed gain; 1 if the baseline was kept.
        low, high: bounds of the claimed interval.
        true: true gain of the plan, from the mean of many replayed runs.
        pairs: pairs of blocks behind the claim; 0 if it comes from separate probes.
        regret: how much slower the plan is than the best plan that fits.
    """

    table: str
    time_ratio: float | None
    claimed: bool
    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0
    true: float = 1.0
    pairs: int = 0
    regret: float = 1.0

    @property
    def held(self) -> bool:
        """Whether the true gain lies in the interval."""
        return self.low * (1 - ALLOWANCE_RATIO) <= self.true <= self.high * (1 + ALLOWANCE_RATIO)


def replayed(case: Case, bench: TableBench, seed: int, time_ratio: float | None, disturbed: bool = True) -> Claim:
    """Returns the claim of one search with memory estimates from traces."""
    probe_s = median(entry.outcome.duration_s for entry in case.table.entries)
    chance = zlib.crc32(f"{case.name} {seed} {time_ratio}".encode())
    bursts = Bursts(chance, CALM_PROBES * probe_s, BURST_PROBES * probe_s, MOST_LOG) if disturbed else None
    time_s = None if time_ratio is None else time_ratio * probe_s
    budget = Budget(memory_bytes=case.table.budget.memory_bytes, time_s=time_s)
    found = rehearse(case, bench, "guided", "traced", seed, budget=budget, bursts=bursts).findings
    if found is None:
        return Claim(case.name, time_ratio, claimed=False)
    score, baseline = case.scores[found.plan.key], case.table.space.baseline
    regret = 1 - score / case.best
    if found.plan == baseline or found.gain is None:
        return Claim(case.name, time_ratio, claimed=False, regret=regret)
    gain = found.gain
    true = score / case.scores[baseline.key]
    return Claim(case.name, time_ratio, True, gain.value, gain.low, gain.high, true, gain.pairs, regret)


def play(name: str, given: argparse.Namespace) -> list[Claim]:
    """Returns the claims of all searches on one table."""
    found = []
    for case in cases(name):
        bench = TableBench(case.table, block_ratio=BLOCK_RATIO)
        for seed in range(given.seeds):
            found += [replayed(case, bench, seed, ratio, not given.calm) for ratio in TIMES]
    return found


def summarised(claims: Sequence[Claim]) -> dict[str, Any]:
    """Returns the figures of some searches."""
    made = [claim for claim in claims if claim.claimed]
    raced = [claim for claim in made if claim.pairs]
    widths = [math.log(claim.high / claim.low) / 2 for claim in made]
    regrets = [claim.regret for claim in claims]
    return {
        "replays": len(claims),
        "claims": len(made),
        "held": fmean(claim.held for claim in made) if made else 1.0,
        "raced": len(raced),
        "raced_held": fmean(claim.held for claim in raced) if raced else 1.0,
        "half_width": median(widths) if widths else 0.0,
        "bias_log": fmean(math.log(claim.gain / claim.true) for claim in made) if made else 0.0,
        "regret": fmean(regrets),
        "regret_95": report.percentile(regrets, 0.95),
    }


def in_words(title: str, got: dict[str, Any]) -> str:
    """Returns figures as one line."""
    return (
        f"{title}: {got['held']:.1%} of {got['claims']} claims hold ({got['raced']} raced, {got['raced_held']:.1%} of "
        f"them); half width {got['half_width']:.1%}, mean error {got['bias_log']:+.1%}; regret "
        f"{got['regret']:.2%}, 95th {got['regret_95']:.2%} of {got['replays']} replays"
    )


def parse() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=4, help="number of searches for each time budget on each table")
    parser.add_argument("--only", metavar="TABLE", action="append", help="use only this table; may be repeated")
    parser.add_argument("--calm", action="store_true", help="replay the recorded noise only, without bursts")
    parser.add_argument("--missed", action="store_true", help="print each claim that does not hold")
    parser.add_argument("--jobs", type=int, default=1, help="number of tables to run in parallel")
    given = parser.parse_args()
    given.only = given.only or names()
    if unknown := sorted(set(given.only) - set(names())):
        report.fail(f"claims: {', '.join(unknown)} is unknown; expected {', '.join(names())}", 2)
    return given


def main() -> None:
    given = parse()
    claims = [claim for found in over_tables(partial(play, given=given), given.only, given.jobs) for claim in found]
    for claim in claims if given.missed else ():
        if claim.claimed and not claim.held:
            print(claim)
    for ratio in TIMES:
        label = "no time limit" if ratio is None else f"time for {ratio:g} probes"
        print(in_words(label, summarised([claim for claim in claims if claim.time_ratio == ratio])))
    whole = summarised(claims)
    passed = whole["held"] >= LEAST_HELD
    figures = {"seeds": given.seeds, "all": whole, "claims": [asdict(claim) for claim in claims]}
    line = in_words("claims on a calm machine" if given.calm else "claims on a machine disturbed in bursts", whole)
    report.finish(f"{line}: {'ok' if passed else 'MISSED'}", figures, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
