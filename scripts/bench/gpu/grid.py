"""Compares `tune()` with a complete grid: how much slower the recommended plan is than the best one.

The model is tuned as by the command line. Then every plan of the same search space is recorded as a table
(DIR/table-MODEL.json; the next call continues it if the time limit was reached). Finally, the recommended plan and the
fastest plan of the grid run in interleaved blocks. Only these blocks decide: the fastest of many measured plans is
partly the luckiest one.
"""

from pathlib import Path
from typing import Any

from autofit.core.answer import Answer, Ratio
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_duration
from autofit.probing.remote.bench import RemoteBench
from autofit.search.race import pair
from autofit.search.request import Event, Request
from autofit.search.search import search
from scripts.bench.gpu import stage
from scripts.bench.gpu.blocks import interleaved
from scripts.bench.gpu.models import MODELS
from scripts.bench.search.record_table import Recording, open_recording, restricted
from scripts.bench.search.replay.table import Table

SMALLEST = 64
"""Micro batches smaller than the global batch divided by this are left out of the grid: their steps take too long."""
TUNE_RATIO, PAIRS_RATIO = 0.3, 0.15
"""Shares of the time of the stage for tuning, and for the comparison at the end."""


def tune(bench: RemoteBench, seconds: float) -> dict[str, Any]:
    """Returns the answer of a search with its trials in order, as JSON values."""
    trials: list[Trial] = []

    def listen(event: Event) -> None:
        if event.trial is not None:
            trials.append(event.trial)

    request = Request(time_s=seconds, study=":memory:", isolated=True)
    answer = search(bench, request, [listen], Clock())
    return {
        "answer": answer.model_dump(mode="json", by_alias=True),
        "trials": [_bare(trial).model_dump(mode="json") for trial in trials],
    }


def _bare(trial: Trial) -> Trial:
    """Returns the trial without its traceback, which contains paths of this machine."""
    return trial.model_copy(update={"outcome": trial.outcome.model_copy(update={"traceback_text": ""})})


def side_by_side(bench: RemoteBench, ours: Plan, theirs: Plan, pairs: int, clock: Clock, limit_s: float) -> Ratio:
    """Returns the throughput of `ours` relative to `theirs` from interleaved blocks; at least 4 pairs in any case.

    Raises:
        AutofitError: a block failed.
    """
    logs = interleaved(bench.evaluate, {"ours": ours, "theirs": theirs}, pairs, clock, limit_s)
    return pair(logs["ours"], logs["theirs"]).ratio()


def grid_space(space: SpaceFacts) -> SpaceFacts:
    """Returns the part of a search space that is recorded."""
    total = space.global_batch_size or max(space.sizes)
    return restricted(space, [size for size in space.sizes if size * SMALLEST >= total])


def record(bench: RemoteBench, path: Path, name: str, rounds: int, clock: Clock, limit_s: float) -> Table:
    """Returns the complete table, or ends the stage as unfinished if the time limit is reached first."""
    space = grid_space(bench.briefing.space)
    recording: Recording = open_recording(path, name, bench.briefing, space, rounds, seed=0)
    if not recording.run(bench.evaluate, clock, limit_s):
        table = recording.table
        stage.unfinished(f"grid {name}: {len(table.entries)} of {len(table.plans)} plans", clock)
    return recording.table


def rows(table: Table, recommended: Plan) -> dict[str, Any]:
    """Returns the ten fastest plans of the grid as a table for the summary page."""
    objective = Objective()
    scored = sorted(((e.score(objective) or 0.0, e) for e in table.entries), key=lambda pair: -pair[0])[:10]
    return stage.table(
        ["plan", "samples/s", "peak", ""],
        [
            [entry.plan, f"{score:.4g}", format_bytes(_peak(entry.outcome.measurement)),
             "recommended" if entry.plan == recommended else ""]
            for score, entry in scored if score
        ],
    )  # fmt: skip


def _peak(measurement: Any) -> int | None:
    return None if measurement is None else measurement.memory.judged_bytes


def run(name: str, given: Any, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the recommended plan kept the budget."""
    model = MODELS[name]
    parts = stage.Parts(given.out / f"grid-{name}.part.json")
    with RemoteBench(stage.target(model, given, strategies=model.strategies)) as bench:
        tuned = parts.get("tuned", lambda: tune(bench, TUNE_RATIO * given.limit_s))
        found = Answer.model_validate(tuned["answer"])
        keep_s = PAIRS_RATIO * given.limit_s
        table = record(bench, given.out / f"table-{name}.json", name, given.rounds, clock, given.limit_s - keep_s)
        best = table.best(Objective())
        if best is None:
            raise AutofitError("tuning recommended a plan, but no plan of the grid fits; read the reasons in the table")
        same = best.plan == found.plan
        ratio = (
            Ratio(value=1, low=1, high=1)
            if same
            else side_by_side(bench, found.plan, best.plan, given.pairs, clock, given.limit_s)
        )
    grid_s = sum(e.outcome.duration_s for e in table.entries)
    peak, budget = found.proof.memory.judged_bytes, found.budget.memory_bytes
    figures = {
        "model": name, "ratio_to_best": ratio.model_dump(), "best": best.plan.model_dump(mode="json")["values"],
        "search_s": found.duration_s, "grid_probes_s": grid_s, "grid_plans": len(table.entries),
        "counts": found.counts, **tuned, "table": rows(table, found.plan),
    }  # fmt: skip
    summary = (
        f"grid {name}: recommended {found.plan}, {'the best' if same else f'{ratio} of the best'} of "
        f"{len(table.entries)} plans; {sum(found.counts.values())} trials in {format_duration(found.duration_s)}, the "
        f"grid's probes took {format_duration(grid_s)}; peak {format_bytes(peak)} of {format_bytes(budget)}"
    )
    parts.clear()
    return summary, figures, peak <= budget


def main() -> None:
    parser = stage.parser(__doc__ or "")
    stage.model_argument(parser)
    parser.add_argument("--rounds", type=int, default=2, help="blocks of each plan, in addition to its probe")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks in the comparison at the end")
    given = stage.parse(parser)
    stage.conclude(f"grid {given.model}", given, lambda: run(given.model, given, Clock()))


if __name__ == "__main__":
    main()
