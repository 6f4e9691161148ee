"""Many searches in one process: main memory, threads, descriptors, child processes and live tensors stay flat.

Each search has a model and data of its own: in turn a plain one, one that runs out of memory on batches of a size, and
one whose step fails on them. The first tenth warms up. Required: at the end not one thread, descriptor, child or tensor
more than after that, and at most 64 KiB of main memory for each search, by the slope from the second to the last tenth.

    python -m scripts.bench.long_run --searches 1000
"""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import AutofitError
from autofit.workloads.tree import live_tensors
from scripts.bench import report

MOST_BYTES = 64 * 1024
WIDTH, SAMPLES, SPOILT = 32, 128, 4
COUNTS: dict[str, Callable[[], int]] = {
    "threads": threading.active_count,
    "descriptors": lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()),
    "children": lambda: len(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()),
    "tensors": lambda: len(live_tensors()),
}


class Faulty(nn.Module):
    """A model that fails on batches of one size, or not at all."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.layers, self.error = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)), error

    def forward(self, x: Tensor) -> Tensor:
        """Returns values for four classes."""
        if self.error is not None and x.shape[0] == SPOILT:
            raise self.error
        out: Tensor = self.layers(x)
        return out


def search(number: int) -> str:
    """Searches once. Returns how that ended."""
    errors = (None, torch.OutOfMemoryError("injected"), ValueError("injected"))
    torch.manual_seed(number)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(4, (SAMPLES,)))
    try:
        autofit.tune(
            Faulty(errors[number % len(errors)]),
            DataLoader(data, batch_size=8, shuffle=True),
            loss_fn=nn.functional.cross_entropy,
            strategies=("batching",),
            memory_budget="1GiB",
            time_budget=20.0,
            study=":memory:",
            progress=False,
        )
    except AutofitError as error:
        return type(error).__name__
    return "answer"


def rss_bytes() -> int:
    """Returns the main memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(arguments: list[str] | None = None) -> None:
    """Searches again and again. Exits with 1 if something grows."""
    parser = report.parser(__doc__ or "")
    parser.add_argument("--searches", type=int, default=1000)
    given = parser.parse_args(arguments)
    tenth, memory, ends = max(given.searches // 10, 1), list[int](), dict[str, int]()
    before: dict[str, int] = {}
    for number in range(given.searches):
        end = search(number)
        ends[end] = ends.get(end, 0) + 1
        gc.collect()
        memory.append(rss_bytes())
        if number == tenth - 1:
            before = {name: read() for name, read in COUNTS.items()}
        if (number + 1) % tenth == 0:
            print(f"{number + 1} searches: {memory[-1] / 2**20:.1f} MiB, {ends}", flush=True)
    after = {name: read() for name, read in COUNTS.items()}
    grown = {name: after[name] - count for name, count in before.items() if after[name] > count}
    first, last = median(memory[tenth : 2 * tenth]), median(memory[-tenth:])
    slope = (last - first) / (given.searches - 2 * tenth)
    figures: dict[str, Any] = {"ends": ends, "grown": grown, "bytes_per_search": slope, "rss_bytes": memory[::tenth]}
    each = f"{slope / 1024:.1f} KiB each (at most {MOST_BYTES // 1024})"
    summary = f"{given.searches} searches: {each}, more of {grown or 'nothing'}"
    report.finish(summary, figures, given.json, not grown and slope <= MOST_BYTES, "cpu")


if __name__ == "__main__":
    main()
