"""An Answer in words: what to use, what it brings, what it changes, what else was tried, what to know.

The sections come in the order in which a reader needs them, and the code that applies the plan is last. Throughputs of
one summary are on one scale, a gain has its interval, and an estimate without bounds is not shown.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from autofit.core.answer import Answer, Candidate
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.printable import printable
from autofit.core.units import format_bytes, format_duration, short_number
from autofit.core.wording import describe_plan
from autofit.reports.alternatives import others, rate_text, recommended
from autofit.reports.applying import applying_lines, fitted
from autofit.reports.canvas import Canvas
from autofit.reports.report import UPPER_BOUND, WHAT_EACH_DOES
from autofit.reports.sentences import (
    batch_change,
    contradicting_rate,
    counted,
    difference,
    ending,
    kept_because,
    more_in,
    unknown_gain,
)
from autofit.reports.tables import Column, table
from autofit.search.evidence import FOUND_BY_DOCTOR, HELD
from autofit.terminal import wrapped

_FEW, _CAVEATS, _REFUSED = 3, 5, 3
"""Numbers of caveats that are shown in short and in detail, and of refusals. The plan file has all of them."""
_LABEL = 10
_INDENT = "  "

Line = tuple[str, str]
"""A line of text and its colour; "" for none."""


def brief(answer: Answer, canvas: Canvas | None = None, plan_file: str | None = None) -> str:
    """Returns the answer in about a screen, and where to read the rest. The arguments are those of `summarize`."""
    return summarize(answer, canvas, plan_file, is_brief=True)


def summarize(
    answer: Answer, canvas: Canvas | None = None, plan_file: str | None = None, *, is_brief: bool = False
) -> str:
    """Returns the answer in detail for a person to read, ending without a newline.

    Args:
        answer: the record.
        canvas: width and colours. Only a path that is longer than a line goes beyond the width.
        plan_file: path under which the reader has the plan; None if the reader has a `Fit` named `fit`.
        is_brief: as in `brief`.
    """
    r, canvas = answer, canvas or Canvas()
    width, more = canvas.width, "fit.details()" if plan_file is None else f"autofit show {plan_file}"
    titled = [
        _brings(r, width),
        _changes(r, width),
        *([] if is_brief else [_listed(WHAT_EACH_DOES, map(str, r.strategies), width), others(r, width, plan_file)]),
        _listed(EVALUATION, evaluation_sentences(r), width, _INDENT),
        _caveats(r, width, plan_file, _FEW if is_brief else _CAVEATS),
        *([] if is_brief else [_facts(r, width, plan_file)]),
        _usage(r, width, plan_file),
    ]
    # The first line of a section is its title.
    sections = [_headline(r, width), *([(line, "" if n else "title") for n, line in enumerate(s)] for s in titled)]
    rest = wrapped(f"What else was tried, and how it was found: {more}", width) if is_brief else []
    sections.append([(line, "") for line in rest])
    found = (text for text in r.caveats if text.startswith(FOUND_BY_DOCTOR))
    sections.append([(line, "") for text in found for line in wrapped(text, width)])
    texts = ("\n".join(canvas.paint(printable(text), colour) for text, colour in lines) for lines in sections if lines)
    return "\n\n".join(texts)


def _headline(r: Answer, width: int) -> list[Line]:
    plan = describe_plan(r.plan, r.baseline.plan)
    if r.environment.ranks > 1:
        plan = f"{plan} on each of {r.environment.ranks} ranks"
    change = batch_change(r.global_batch(r.baseline.plan), r.global_batch(r.plan))
    if r.plan == r.baseline.plan:
        text, colour = f"Keep the baseline: {plan}. {kept_because(r)}.", "title"
    elif r.gain is None:
        unknown = unknown_gain(r)
        text, colour = f"Use {plan}{change}. {unknown[0].upper()}{unknown[1:]}.", "title"
    else:
        apart = "" if r.gain.pairs else " The two were not compared side by side."
        text = f"Use {plan}: {r.gain} the throughput of the baseline{change}.{apart}"
        colour = "good" if r.gain.low > 1 else "title"
    rate = contradicting_rate(r)
    speed = "" if rate is None else f", at {short_number(rate)} {r.objective.unit}/s"
    proven = f"Proven by {counted(r.proof.worst_steps, 'whole step')} on the worst batch, inside the budget{speed}."
    if r.long_proof.startswith(HELD):
        proven += f" It {r.long_proof}."
    return [*((line, colour) for line in wrapped(text, width)), *((line, "") for line in wrapped(proven, width))]


def _brings(r: Answer, width: int) -> list[str]:
    """Returns throughput and peak of the plan beside those of the baseline."""
    unit, budget = r.objective.unit, f"budget {format_bytes(r.budget.memory_bytes)}"
    names, notes = [f"{unit}/s", "peak memory"], ["" if r.gain is None else str(r.gain), budget]
    after, measurement = _measured(r, recommended(r)), r.baseline.outcome.measurement
    if r.plan == r.baseline.plan:
        columns = [Column("baseline", after, right=True), Column("", ["", budget])]
        return table([Column("What it brings", names), *columns], width)
    before = _measured(r, r.baseline)
    if r.objective.planned_samples is not None and r.proof.startup_s is not None:
        names, notes = [*names, "warm-up"], [*notes, ""]
        after = [*after, format_duration(r.proof.startup_s)]
        started = None if measurement is None else measurement.startup_s
        before = [*before, "unknown" if started is None else format_duration(started)]
    columns = [Column("baseline", before, right=True), Column("recommended", after, right=True)]
    return table([Column("What it brings", names), *columns, Column("", notes)], width)


def _measured(r: Answer, one: Candidate) -> list[str]:
    """Returns throughput and peak of a plan, or how its run ended."""
    measurement = one.outcome.measurement
    if not one.outcome.measured or measurement is None:
        return [ending(one.outcome), ""]
    peak_bytes = measurement.memory.judged_bytes
    return [rate_text(r, one), format_bytes(peak_bytes) if peak_bytes else "unknown"]


def _changes(r: Answer, width: int) -> list[str]:
    """Returns what differs from the baseline; nothing if the baseline is kept."""
    before, after = r.baseline.plan, r.plan
    if before == after:
        return []
    rows = [("samples per step", f"{r.global_batch(before):,}", f"{r.global_batch(after):,}")]
    rows += [("micro batch", f"{before.micro_batch_size:,}", f"{after.micro_batch_size:,}")]
    rows += [("accumulation steps", str(before.accumulation_steps), str(after.accumulation_steps))]
    rows += [
        (name, str(before.values.get(name, "")), str(value))
        for name, value in after.changes_from(before).items()
        if name not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)
    ]
    rows = [row for row in rows if row[1] != row[2]]
    names, old, new = (list(column) for column in zip(*rows, strict=True))
    columns = [Column("baseline", old, right=True), Column("recommended", new, right=True)]
    return table([Column("What it changes", names), *columns], width)


def _listed(title: str, texts: Iterable[str], width: int, rest: str = 2 * _INDENT) -> list[str]:
    """Returns texts below a title, each with its later lines behind `rest`; [] if there are none."""
    lines = [line for text in texts for line in wrapped(text, width, _INDENT, rest)]
    return [title, *lines] if lines else []


def _caveats(r: Answer, width: int, plan_file: str | None, most: int) -> list[str]:
    caveats = [caveat for caveat in r.caveats if not caveat.startswith(FOUND_BY_DOCTOR)]  # that is the last line of all
    if not caveats:
        return []
    shown = caveats[:most] if len(caveats) > most + 1 else caveats
    lines = [line for caveat in shown for line in wrapped(caveat, width, "  - ", "    ")]
    more = more_in(len(caveats) - len(shown), plan_file or "fit.caveats")
    return ["What to know", *lines, *(wrapped(more, width, _INDENT, _INDENT) if more else [])]


def _facts(r: Answer, width: int, plan_file: str | None) -> list[str]:
    """Returns how the plan was found: proof, budget, device, trials, and what was not searched."""
    rest = " " * (len(_INDENT) + _LABEL)
    lines = (wrapped(text, width, f"{_INDENT}{label:{_LABEL}}", rest) for label, text in _labelled(r, plan_file))
    return ["How it was found", *chain.from_iterable(lines)]


def _labelled(r: Answer, plan_file: str | None) -> Iterator[tuple[str, str]]:
    environment, peak = r.environment, r.proof.memory.judged_bytes
    if r.estimate is not None and r.estimate.is_bounded and peak:
        value = r.estimate.value_bytes
        error = f"{difference(value / peak - 1)} from the measured peak"
        about = f"an {UPPER_BOUND}" if r.estimate.worst_case else error
        yield "estimate", f"{format_bytes(value)} before it ran, {about}"
    if r.objective.planned_samples is not None:
        samples, size = r.objective.planned_samples, r.global_batch(r.plan)
        yield "planned", f"{samples:,} samples, {samples / size:,.0f} steps of {size}; warm-up is part of samples/s"
    yield "budget", r.budget.memory_note or format_bytes(r.budget.memory_bytes)
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    yield "device", f"{environment.devices} ({environment.device_type}), {versions}"
    trials = ", ".join(f"{count} {status}" for status, count in r.counts.items()) or "none"
    yield "trials", f"{trials} in {format_duration(r.duration_s)}; study {r.study}"
    for refused in r.refused[:_REFUSED]:
        yield "left out", f"{refused.name}: {refused.reason}"
    if more := more_in(len(r.refused) - _REFUSED, plan_file or "fit.answer.refused"):
        yield "", more


def _usage(r: Answer, width: int, plan_file: str | None) -> list[str]:
    """Returns the code that applies the plan, and the one for evaluation."""
    load, text, code = [] if plan_file is None else [f'fit = autofit.load("{plan_file}")'], list[str](), list[str]()
    if r.plan == r.baseline.plan and r.environment.ranks == 1:  # several ranks still have to be divided
        text = wrapped("Nothing to apply: train as you do now.", width, _INDENT, _INDENT)
    else:
        code = applying_lines(r, from_file=plan_file is not None)
    if r.evaluation is not None and r.evaluation.plan != r.evaluation.baseline.plan:
        code += ["with fit.evaluation.prepare(model, eval_loader) as step:", "    for batch in step.loader:"]
        code += ["        output = step(batch)"]
    lines = [*load, *fitted(code, width - len(_INDENT))] if code else []
    return ["How to use it", *text, *(_INDENT + line for line in lines)]


EVALUATION = "Evaluation"
"""Title of the section."""


def evaluation_sentences(r: Answer) -> tuple[str, ...]:
    """Returns what evaluation uses and brings, and its budget; () if the training has no plan for it."""
    found = r.evaluation
    if found is None:
        return ()
    plan, unit = describe_plan(found.plan, found.baseline.plan), found.objective.unit
    speed = rate_text(found, recommended(found))
    if found.plan == found.baseline.plan:
        text = f"Keep the batch of eval_loader: {plan}, {speed} {unit}/s"
    else:
        gain = "" if found.gain is None else f", {found.gain} the throughput of eval_loader's batch"
        text = f"Use {plan}: {speed} {unit}/s{gain}"
    if peak := found.proof.memory.judged_bytes:
        text += f". Peak {format_bytes(peak)}, beside what the training keeps"
    return f"{text}.", f"Budget {found.budget.memory_note or format_bytes(found.budget.memory_bytes)}."
