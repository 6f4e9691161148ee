"""Whether searches that compile end within their time budget, compilation included.

Each run tunes one of three examples in this process, with a cold compile cache and one of several time budgets. Every
second run is pinned to compile; the others decide for themselves, for a long planned training. A search may exceed its
budget by a tenth and five seconds (`autofit.core.budget`). Every run that is pinned to compile must have tried it.
"""

import time
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import autofit
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S
from autofit.core.errors import BudgetSpent, NothingFits, WorkloadError
from autofit.core.outcome import Status
from autofit.core.trial import Trial
from autofit.search.request import Event
from autofit.workloads.factory import as_arguments
from scripts.bench import report
from scripts.bench.compilation import KNOB, NAMES
from scripts.bench.gain import load

TIMES_S = (30.0, 45.0, 60.0, 90.0)
PLANNED_STEPS = 1_000_000


def cases() -> Iterator[tuple[str, float, bool]]:
    """Yields examples with time budgets and whether they must compile, without end; 12 in a row are all pairs."""
    for number, (name, seconds) in enumerate(zip(cycle(NAMES), cycle(TIMES_S), strict=False)):
        yield name, seconds, (number + number // 12) % 2 == 0  # the second round has the others


def measure(name: str, seconds: float, *, pinned: bool) -> dict[str, Any]:
    """Returns the figures of one run; `pinned` is whether it is pinned to compile."""
    compiled: list[Trial] = []

    def note(event: Event) -> None:
        if event.kind == "trial" and event.trial is not None and event.trial.plan.values.get(KNOB, "off") != "off":
            compiled.append(event.trial)

    arguments = as_arguments(load(name).make_workload(), name)
    limits: dict[str, Any] = {"time_budget": seconds, "planned_steps": PLANNED_STEPS, "study": ":memory:"}
    if pinned:
        limits["pinned"] = {KNOB: "default"}
    began_s = time.monotonic()
    try:
        found = str(autofit.tune(**arguments, **limits, progress=False, listeners=[note]).plan)
    except (BudgetSpent, NothingFits, WorkloadError):  # an answer too: in this time, no plan was proven or compiled
        found = "no plan"
    took_s = time.monotonic() - began_s
    tried = [trial.outcome.status for trial in compiled if trial.outcome.status is not Status.SKIPPED]
    limit_s = (1 + OVERTIME_RATIO) * seconds + OVERTIME_S
    print(f"{name:10s} {took_s:5.1f} s of {seconds:.0f} s, compiled {len(tried)} plans: {found}", flush=True)
    return {
        "example": name,
        "time_s": seconds,
        "pinned": pinned,
        "took_s": took_s,
        "found": found,
        "compiled": [status.value for status in tried],
        "ok": took_s <= limit_s and (bool(tried) or not pinned),
    }


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--runs", type=int, default=20, help="number of searches")
    given = parser.parse_args()
    found = [measure(name, seconds, pinned=pinned) for name, seconds, pinned in islice(cases(), given.runs)]
    in_time, tried = sum(each["ok"] for each in found), sum(bool(each["compiled"]) for each in found)
    passed = in_time == len(found)
    summary = f"searches with compilation: {in_time} of {len(found)} in time, {tried} compiled"
    report.finish(f"{summary}: {'ok' if passed else 'MISSED'}", {"runs": found}, given.json, passed)


if __name__ == "__main__":
    main()
