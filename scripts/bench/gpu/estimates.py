"""Compares memory estimates with measurements, for plans that the search did not run.

Each estimator gets the trials of a search (stage grid) in order, and then estimates every other plan of the recorded
table. Its value and bounds are compared with the measured peak, or with the fact that the plan did not fit. Then plans
are traced (`traced.py`), and their footprints are compared before and after one probe.

Required: no plan that fits is refused by a lower bound; on a GPU, footprints are within 3 % of the trace before the
probe and within 1.5 % after it.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from autofit import estimators
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, UsageError
from autofit.core.estimate import Estimate
from autofit.core.outcome import Status
from autofit.core.trial import Trial
from autofit.estimators.base import Estimator
from autofit.probing.remote.bench import RemoteBench
from scripts.bench import files, report
from scripts.bench.gpu import stage
from scripts.bench.gpu.models import MODELS
from scripts.bench.gpu.traced import score as score_traced
from scripts.bench.search.replay.table import Entry, Table, read_table


def score(estimator: Estimator, trials: Sequence[Trial], table: Table) -> dict[str, Any]:
    """Returns the errors of an estimator that knows `trials` on the other plans of `table`."""
    for trial in trials:
        estimator.tell(trial)
    known_plans = {trial.plan for trial in trials if trial.outcome.status is not Status.SKIPPED}
    rest = [entry for entry in table.entries if entry.plan not in known_plans]
    asked = [(entry, estimate) for entry in rest if (estimate := estimator.estimate(entry.plan)) is not None]
    known = [(peak, estimate) for entry, estimate in asked if (peak := _peak(entry)) is not None]
    errors = sorted(estimate.value_bytes / peak - 1 for peak, estimate in known)
    limit = table.budget.memory_bytes
    return {
        "estimator": type(estimator).__name__,
        "known": len(known_plans),
        "rest": len(rest),
        "no_opinion": len(rest) - len(asked),
        "median_error_ratio": median(errors) if errors else None,
        "worst_error_ratios": [errors[0], errors[-1]] if errors else None,
        "median_size_of_error_ratio": median(map(abs, errors)) if errors else None,
        "below_lower_bound": sum(e.lower_bytes is not None and peak < e.lower_bytes for peak, e in known),
        "above_upper_bound": sum(e.upper_bytes is not None and peak > e.upper_bytes for peak, e in known),
        "fits_but_refused": sum(_refused(e, limit) for entry, e in asked if entry.outcome.measured),
        "does_not_fit_and_refused": sum(_refused(e, limit) for entry, e in asked if _unfit(entry)),
        "does_not_fit": sum(_unfit(entry) for entry in rest),
    }


def _peak(entry: Entry) -> int | None:
    measurement = entry.outcome.measurement
    return None if measurement is None else measurement.memory.judged_bytes


def _refused(estimate: Estimate, limit: int) -> bool:
    return estimate.lower_bytes is not None and estimate.lower_bytes > limit


def _unfit(entry: Entry) -> bool:
    return entry.outcome.status.does_not_fit


def load(out: Path) -> list[tuple[str, list[Trial], Table]]:
    """Returns name, trials of the search and table of each model whose stage grid is finished.

    Raises:
        UsageError: no stage grid is finished.
    """
    found = []
    for path in sorted(out.glob("grid-*.json")):
        name = path.stem.removeprefix("grid-")
        table = out / f"table-{name}.json"
        record = files.read(path) or {}
        if "trials" in record and table.exists():
            trials = [Trial.model_validate(trial) for trial in record["trials"]]
            found.append((name, trials, read_table(table.read_text(encoding="utf-8"), str(table))))
    if not found:
        raise UsageError(f"there are no finished grids in {out}. Run a grid stage first.")
    return found


def traced(name: str, trials: Sequence[Trial], table: Table, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the errors of traces made on this machine for the table of a benchmark model.

    Raises:
        UsageError: the table was recorded on another kind of device.
    """
    here, there = given.device.partition(":")[0], table.environment.device_type
    if here != there:
        raise UsageError(f"the grid of {name} was recorded on {there}, expected {here}. Give --device {there}.")
    model = MODELS[name]
    with RemoteBench(stage.target(model, given, strategies=model.strategies)) as bench:
        if bench.briefing.account is None:
            raise UsageError(f"the memory of {given.device} can only be measured. Leave this stage out.")
        return score_traced(bench.trace, bench.briefing.account, trials, table, given.plans)


def run(given: argparse.Namespace, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the requirements are met; there are none on a CPU."""
    parts = stage.Parts(given.out / "estimates.part.json")
    results, traces = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, trials, table in load(given.out):
        results += [{"model": name, **score(estimators.Measured(), trials, table)}]
        if name not in parts and clock.elapsed_s > given.limit_s:
            stage.unfinished(f"estimates: {len(traces)} models traced", clock)
        traces.append({"model": name, **parts.get(name, partial(traced, name, trials, table, given))})
    parts.clear()
    refused, met = sum(result["fits_but_refused"] for result in results), all(each["ok"] for each in traces)
    columns = list(results[0])
    rows = [[_text(r[c]) for c in columns] for r in results]
    figures = {"results": results, "traced": traces, "table": stage.table(columns, rows)}
    outside = sum(r["below_lower_bound"] + r["above_upper_bound"] for r in results)
    summary = (
        f"estimates: traces {_errors(traces, 'before')}, after one probe {_errors(traces, 'after')}: "
        f"{'ok' if met else 'MISSED'}; {len(results)} estimators x models after a search, "
        f"{_in_the_median(results)}; {outside} peaks outside their bounds, {refused} plans that fit would have been "
        "refused"
    )
    return summary, figures, refused == 0 and (met or given.device == "cpu")


def _in_the_median(results: Sequence[dict[str, Any]]) -> str:
    sizes = [r["median_size_of_error_ratio"] for r in results if r["median_size_of_error_ratio"] is not None]
    return f"median error {min(sizes):.1%} to {max(sizes):.1%}" if sizes else "no estimate of any other plan"


def _errors(traces: Sequence[dict[str, Any]], when: str) -> str:
    """Returns how many plans were estimated, and the largest median and worst error over the models."""
    found = [each[when] for each in traces if when in each and each[when]["estimated"]]
    count = f"{sum(each['estimated'] for each in found)} of {sum(each['asked'] for each in traces)} plans"
    if not found:
        return f"no estimate for {count}"
    worst, outside = max((each["worst_ratio"] for each in found), key=abs), sum(each["outside"] for each in found)
    most = max(each["median_ratio"] for each in found)
    return f"of {count}: median error {most:.2%}, worst {worst:+.2%}, {outside} outside their bounds"


def _text(value: object) -> str:
    if isinstance(value, list):
        return " to ".join(map(_text, value))
    return f"{value:+.1%}" if isinstance(value, float) else "-" if value is None else str(value)


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("--plans", type=int, default=24, help="number of plans of each grid to trace (%(default)s)")
    given = stage.parse(parser)
    try:
        summary, figures, passed = run(given, Clock())
    except AutofitError as error:
        report.fail(f"estimates: {error}", error.exit_code)
    report.finish(summary, figures, given.json, passed, given.device)


if __name__ == "__main__":
    main()
