"""Measures one architecture of the benchmark of memory estimates, in its own process; `estimates.py` starts it.

    python -m scripts.bench.memory.part here NAME FILE [--quick]  # with the device: real steps and traces
    python -m scripts.bench.memory.part stand-in NAME FILE        # without it: traces of the same sizes

The second command reads from FILE the sizes that the first one measured, and adds its own figures.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autofit.tracing.cuda import standin
from autofit.tracing.cuda.allocator_steps import Chip
from scripts.bench import files
from scripts.bench.memory.architecture import Architecture, Configuration
from scripts.bench.memory.architectures import LOOSE
from scripts.bench.memory.held_back import HELD_BACK
from scripts.bench.memory.rig import Peaks, SizeEstimator, Subject, largest, sizes, traced
from scripts.bench.memory.trials import TRIALS

ALL = LOOSE | HELD_BACK | TRIALS
BUDGETS = (0.3, 0.75)
"""Budgets, as shares of the way from the smallest size's reserved peak to that of the largest."""
MARGIN = 0.01
"""Share of the budget that is kept free in decisions after one correcting probe."""


def here(architecture: Architecture, quick: bool) -> dict[str, Any]:
    """Returns the figures of an architecture on the device that is present."""
    device = torch.device("cuda", 0)
    chip = Chip.of(device)
    configurations = architecture.configurations[: 1 if quick else None]
    return {
        "name": architecture.name,
        "family": architecture.family,
        "chip": [chip.capability, chip.multiprocessors, chip.threads],
        "configurations": [_measured(architecture, each, device, quick) for each in configurations],
    }


def _measured(
    architecture: Architecture, configuration: Configuration, device: torch.device, quick: bool
) -> dict[str, Any]:
    """Returns the figures of one configuration. Its model is released on return."""
    subject = Subject(architecture, configuration, device)
    found = sizes(subject, torch.get_device_module(device).get_device_properties(device).total_memory)
    found = found[::3] if quick else found
    truth = {size: subject.run(size) for size in found}
    estimator = SizeEstimator(subject, traced(found, architecture.unit))
    return {
        "configuration": configuration.name,
        "sizes": found,
        "truth": list(truth.values()),
        "here": figures(estimator, found),
        "decisions": list(decisions(subject, estimator, truth)),
    }


def figures(estimator: SizeEstimator, found: list[int]) -> dict[str, Any]:
    """Returns the estimates for some sizes, and the time that they took."""
    peaks = [estimator.at(size) for size in found]
    return {
        "peaks": peaks,
        "traced": list(estimator.traced),
        "refused": estimator.refused,
        "traced_by_itself": sorted(estimator.retraced),
        "drawn": [[size, *estimator.drawn[size]] for size in found if size in estimator.drawn],
        "trace_s": estimator.trace_s,
        "replay_s": estimator.replay_s,
    }


def decisions(subject: Subject, estimator: SizeEstimator, known: dict[int, Peaks]) -> Iterator[dict[str, Any]]:
    """Yields, for each budget, the largest size that is estimated to fit, with and without a probe, and that fits."""
    unit, ordered = subject.architecture.unit, list(known)
    low, high, most = known[ordered[0]][1], known[ordered[-1]][1], ordered[-1] // unit
    middle = ordered[len(ordered) // 2]
    missed = known[middle][1] - estimator.at(middle)[1]

    def truth(count: int) -> int:
        if count * unit not in known:
            known[count * unit] = subject.run(count * unit)
        return known[count * unit][1]

    for share in BUDGETS:
        budget = low + int(share * (high - low))

        def said(count: int, room: float = budget) -> bool:
            return estimator.at(count * unit)[1] <= room

        plain = largest(said, middle // unit, most)
        room = budget * (1 - MARGIN) - missed
        careful = largest(lambda count, room=room: said(count, room), plain or 1, most)  # type: ignore[misc]  # mypy takes the default for a parameter
        best = largest(lambda count, budget=budget: truth(count) <= budget, plain or 1, most)  # type: ignore[misc]  # likewise
        yield {
            "budget_bytes": budget,
            "best": best * unit,
            "said": plain * unit,
            "over_bytes": max(truth(plain) - budget, 0) if plain else 0,
            "probed_at": middle,
            "missed_bytes": missed,
            "careful": careful * unit,
            "careful_over_bytes": max(truth(careful) - budget, 0) if careful else 0,
        }


def on_stand_in(architecture: Architecture, known: dict[str, Any]) -> dict[str, Any]:
    """Returns `known` with the estimates of the stand-in device for its sizes.

    Raises:
        RuntimeError: this process sees a device, so it does not show what a machine without one estimates.
    """
    if torch.get_device_module("cuda").is_available():
        raise RuntimeError("a CUDA device is present; expected a Python that sees none. Choose one with --stand-in.")
    device = standin.install()
    capability, multiprocessors, threads = known["chip"]
    chip = Chip((capability[0], capability[1]), multiprocessors, threads)
    by_name = {configuration.name: configuration for configuration in architecture.configurations}
    for row in known["configurations"]:
        subject = Subject(architecture, by_name[row["configuration"]], device, chip)
        row["stand-in"] = figures(SizeEstimator(subject, row["here"]["traced"]), row["sizes"])
    return known


def main() -> None:
    torch.set_num_threads(1)
    role, name, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    architecture = ALL[name]
    if role == "here":
        found = here(architecture, quick="--quick" in sys.argv)
    else:
        found = on_stand_in(architecture, json.loads(path.read_text(encoding="utf-8")))
    files.write(path, json.dumps(found))


def errors(peaks: list[Peaks], truth: list[Peaks], which: int) -> list[float]:
    """Returns the relative errors of allocated (0) or reserved (1) peaks."""
    return [said[which] / real[which] - 1 for said, real in zip(peaks, truth, strict=True)]


if __name__ == "__main__":
    main()
