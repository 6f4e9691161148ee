"""Tunes a published architecture as the command line does, and compares the plan with what experts write by hand.

The gain over the baseline is that of the search's own race. Then the recommended plan and two plans by hand (bf16
autocast; bf16 autocast and torch.compile, both with the baseline's batch) run in interleaved blocks. Required: a peak
within the budget, and no plan by hand that is faster beyond noise.
"""

from collections.abc import Callable
from typing import Any

from autofit.core.answer import Answer, Ratio
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes, format_duration
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.race import pair
from scripts.bench.gpu import stage
from scripts.bench.gpu.blocks import interleaved
from scripts.bench.gpu.grid import tune
from scripts.bench.gpu.suite import ARCHITECTURES

Evaluate = Callable[[Plan, Purpose], Outcome]
BY_HAND = {"bf16": {"precision": "bf16"}, "bf16 and compile": {"precision": "bf16", "compile": "default"}}
TUNE_RATIO = 0.6
"""Share of the stage's time for the search; the rest is for the plans by hand."""


def by_hand(space: SpaceFacts) -> dict[str, Plan]:
    """Returns the plans by hand that the search space has."""
    offered = {knob.name: knob.values for knob in space.knobs}
    return {
        name: space.baseline.replace(**values)
        for name, values in BY_HAND.items()
        if all(value in offered.get(knob, ()) for knob, value in values.items())
    }


def compare(
    evaluate: Evaluate, found: Plan, others: dict[str, Plan], rounds: int, clock: Clock, limit_s: float
) -> dict[str, Ratio | str]:
    """Returns, for each plan by hand, the throughput of `found` relative to it, or why there is none."""
    results: dict[str, Ratio | str] = {}
    for name, plan in others.items():
        if clock.elapsed_s > limit_s:
            results[name] = "not run: the time of the stage was spent"
            continue
        outcome = evaluate(plan, Purpose.PROBE)
        if outcome.measurement is None:
            results[name] = f"{outcome.status.value}: {outcome.reason}"
    running = {name: plan for name, plan in others.items() if name not in results and plan != found}
    if running:
        logs = interleaved(evaluate, {"found": found, **running}, rounds, clock, limit_s, least=2)
        results |= {name: pair(logs["found"], logs[name]).ratio() for name in running}
    return results | {name: "the recommended plan" for name, plan in others.items() if plan == found}


def run(name: str, given: Any, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the requirements are met."""
    parts = stage.Parts(given.out / f"gain-{name}.part.json")
    module = f"{__package__}.architectures"
    target = Target(name=f"{module}:{name}", arguments={"scale": given.scale}, device=given.device, options=Options())
    with RemoteBench(target) as bench:
        tuned = parts.get("tuned", lambda: tune(bench, TUNE_RATIO * given.limit_s))
        found = Answer.model_validate(tuned["answer"])
        others = by_hand(bench.briefing.space)
        hand = compare(bench.evaluate, found.plan, others, given.rounds, clock, given.limit_s)
    peak, budget = found.proof.memory.judged_bytes, found.budget.memory_bytes
    slower = [one for one, ratio in hand.items() if isinstance(ratio, Ratio) and ratio.high < 1]
    shown = ", ".join(f"{ratio} of {one} by hand" for one, ratio in hand.items())
    summary = (
        f"gain {name}: {found.plan} is {found.gain} of the baseline"
        f"{f', {shown}' if shown else ''}; {sum(found.counts.values())} trials in "
        f"{format_duration(found.duration_s)}; peak {format_bytes(peak)} of {format_bytes(budget)}"
    )
    dumped = {one: ratio.model_dump() if isinstance(ratio, Ratio) else ratio for one, ratio in hand.items()}
    figures = {"architecture": name, "by_hand": dumped, **tuned, "table": stage.table(
        ["plan", "samples/s"], [[each.plan, f"{each.rate_per_s:.4g}"] for each in (found, found.baseline)]
    )}  # fmt: skip
    parts.clear()
    return summary, figures, peak <= budget and not slower


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each plan in the comparison (%(default)s)")
    given = stage.parse(parser)
    stage.conclude(f"gain {given.architecture}", given, lambda: run(given.architecture, given, Clock()))


if __name__ == "__main__":
    main()
