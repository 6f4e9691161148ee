"""The plan for evaluation between epochs, as a section of the summary and the report of a training."""

from autofit.core.recommendation import Recommendation
from autofit.core.units import format_bytes, short_number
from autofit.core.wording import describe_plan
from autofit.reports.alternatives import rate_per_s
from autofit.terminal import wrapped

EVALUATION = "Evaluation"
"""Title of the section."""
_INDENT = "  "


def evaluation_sentences(r: Recommendation) -> tuple[str, ...]:
    """Returns what evaluation uses and brings, and its budget; () if the training has no plan for it."""
    found = r.evaluation
    if found is None:
        return ()
    plan, unit = describe_plan(found.plan, found.baseline.plan), found.objective.unit
    speed = short_number(rate_per_s(found, found.proof, found.rate_per_s, found.gain))
    if found.plan == found.baseline.plan:
        text = f"Keep the batch of eval_loader: {plan}, {speed} {unit}/s"
    else:
        gain = "" if found.gain is None else f", {found.gain} the throughput of eval_loader's batch"
        text = f"Use {plan}: {speed} {unit}/s{gain}"
    if peak := found.proof.memory.judged_bytes:
        text += f". Peak {format_bytes(peak)}, beside what the training keeps"
    return f"{text}.", f"Budget {found.budget.memory_note or format_bytes(found.budget.memory_bytes)}."


def evaluation_lines(r: Recommendation, width: int) -> list[str]:
    """Returns what evaluation uses and brings, after a title; [] if the training has no plan for it."""
    lines = [line for each in evaluation_sentences(r) for line in wrapped(each, width, _INDENT, _INDENT)]
    return [EVALUATION, *lines] if lines else []


def evaluation_code(r: Recommendation, width: int) -> list[str]:
    """Returns the code that applies the plan for evaluation; [] if there is none, or nothing to apply."""
    if r.evaluation is None or r.evaluation.plan == r.evaluation.baseline.plan:
        return []
    first = ["with fit.evaluation.prepare(model, eval_loader) as step:"]
    if len(first[0]) + len(_INDENT) > width:
        first = ["with fit.evaluation.prepare(", "    model, eval_loader", ") as step:"]
    return [*first, "    for batch in step.loader:", "        output = step(batch)"]
