"""How long a search on two ranks takes, compared with the same search on one, in interleaved pairs.

Both have the same model, data and techniques, and one thread for each process. On two ranks the layouts are searched
too, every plan is rehearsed, and all ranks agree on the answer. Required: at most 2.5 times the seconds, in the median.

    python -m scripts.bench.ranks.seconds --pairs 5
    python -m scripts.bench.ranks.seconds --pairs 9 --one       # one rank of a launch, compared with no launch

One rank of a launch must take at most 1.02 times the seconds, in the geometric mean.
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.workloads.step import Ranks
from scripts.bench import report
from scripts.bench.compilation import compared
from scripts.bench.ranks.launching import RANKS, launched, unlaunched

MOST_RATIO, MOST_RATIO_OF_ONE = 2.5, 1.02
WIDTH, BLOCKS, BATCH, SAMPLES, CLASSES = 256, 6, 32, 8192, 10
TECHNIQUES = ("layout", "batching", "checkpointing", "optimizer_implementation")


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns values of the input's shape."""
        out: Tensor = x + self.down(self.up(x).relu())
        return out


def searched(ranks: Ranks | None, layout: str | None, batch: int = BATCH) -> dict[str, Any]:
    """Searches once. Returns the seconds, the number of trials and the plan."""
    count = 1 if ranks is None else ranks.count
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES))
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,)))
    fit = autofit.tune(
        model,
        DataLoader(data, batch_size=batch, shuffle=True),
        loss_fn=nn.functional.cross_entropy,
        global_batch_size=2 * batch * count,
        strategies=TECHNIQUES,
        memory_budget="2GiB",
        study=":memory:",
        progress=False,
        pinned={"layout": layout} if layout and count > 1 else None,
    )
    return {
        "seconds": fit.answer.duration_s,
        "trials": sum(fit.answer.counts.values()),
        "plan": str(fit.plan),
    }


def one(pairs: int, path: Path | None) -> None:
    """Compares searches on one rank of a launch with those without a launch. Exits with 1 if they take longer."""
    runs = {
        "launched": lambda: launched(searched, None, ranks=1)[0],
        "alone": lambda: unlaunched(searched, None, None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(pairs):
        for name in sorted(runs, reverse=bool(number % 2)):
            seconds[name].append(runs[name]()["seconds"])
        print(f"pair {number + 1}: {seconds['launched'][-1]:.2f} s, {seconds['alone'][-1]:.2f} s without", flush=True)
    ratio, high = compared(seconds["launched"], seconds["alone"])
    summary = f"one rank of a launch: {ratio:.3f}x (95 % below {high:.3f}) the seconds of none"
    report.finish(f"{summary}; at most {MOST_RATIO_OF_ONE}", seconds, path, ratio <= MOST_RATIO_OF_ONE, "cpu")


def main(arguments: list[str] | None = None) -> None:
    """Compares pairs of searches. Exits with 1 if those on two ranks take too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--layout", help="layout of the two ranks, so that both search the same plans (default: all)")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a batch (default: %(default)s)")
    parser.add_argument("--one", action="store_true", help="compare one rank of a launch with no launch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    if given.one:
        one(given.pairs, given.json)
        return
    pairs, ratios = list[dict[str, Any]](), list[float]()
    for number in range(given.pairs):
        order = (1, RANKS) if number % 2 else (RANKS, 1)
        found = {count: launched(searched, given.layout, given.batch, ranks=count)[0] for count in order}
        ratios.append(found[RANKS]["seconds"] / found[1]["seconds"])
        pairs.append({"one": found[1], "two": found[RANKS], "ratio": ratios[-1]})
        print(
            f"pair {number + 1}: one {found[1]['seconds']:.1f} s, {found[1]['trials']} trials; "
            f"two {found[RANKS]['seconds']:.1f} s, {found[RANKS]['trials']} trials; {ratios[-1]:.2f}x",
            flush=True,
        )
    middle = median(ratios)
    summary = f"two ranks: {middle:.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) the seconds of one"
    report.finish(f"{summary}; at most {MOST_RATIO}", {"pairs": pairs}, given.json, middle <= MOST_RATIO, "cpu")


if __name__ == "__main__":
    main()
