"""Estimation: what `autofit.estimate` returns, the records that it consists of, and its text with bars."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.plan import KnobValue, Plan, same_value
from autofit.core.printable import printable
from autofit.core.space import Refusal
from autofit.core.strict import Strict
from autofit.core.units import format_bytes, short_number
from autofit.core.wording import describe_plan
from autofit.memory.breakdown import OUTSIDE, Breakdown, Part
from autofit.memory.trace import Kind
from autofit.reports.canvas import Canvas

PRECISION = "precision"
"""The knob whose values need no name beside them."""


class TradedKnob(Strict):
    """The knob of which the smallest value that suffices was looked for; all texts are "" if there is none.

    Attributes:
        knob: name of the knob.
        technique: what it applies.
        counted: what its values count.
    """

    knob: str = ""
    technique: str = ""
    counted: str = ""


class EstimatedPlan(Strict):
    """A plan with its estimated peak.

    Attributes:
        plan: the plan.
        peak: estimated peak, in the reading that the budget limits.
        fits: whether the peak is within the budget.
        surely: whether the upper bound of the peak is within the budget too.
        samples_per_s: throughput at the device's peak rates. Real kernels are slower by a factor, so compare it only
            within one estimate. None if it is unknown.
    """

    plan: Plan
    peak: Estimate
    fits: bool
    surely: bool
    samples_per_s: float | None = None


class Need(Strict):
    """Value of the traded knob with which a micro batch fits, such as the number of checkpointed blocks.

    Attributes:
        micro_batch_size: samples in the micro batch.
        blocks: smallest value with which the micro batch fits; None if none suffices.
        estimated: the plan with that value, or with the last one if none suffices.
    """

    micro_batch_size: int
    blocks: int | None
    estimated: EstimatedPlan | None = None


class Row(Strict):
    """What fits with one value of one knob, with the baseline's values of the others.

    Attributes:
        knob: name of the knob; "" if no knob changes the memory per sample.
        value: value of the knob.
        same_as: name of the row with the same memory use, or "".
        largest: largest micro batch that fits without trading memory; None if not even the smallest fits.
        surely: size of about the largest micro batch whose upper bound also fits; None if none was found.
        capped: why no larger micro batch was tried, if `largest` is the largest possible one; else "".
        needs: for the baseline's micro batch and for a larger one; () if no knob trades memory.
        reason: why there is no estimate, or "".
    """

    knob: str = ""
    value: KnobValue = ""
    same_as: str = ""
    largest: EstimatedPlan | None = None
    surely: int | None = None
    capped: str = ""
    needs: tuple[Need, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        """The choice in words; "" if there is none."""
        return str(self.value) if self.knob in ("", PRECISION) else f"{self.knob}={self.value}"


class PeakLaw(Strict):
    """The peak of one choice at several micro batches. Between two of them, every part is close to a straight line.

    So it is between the first and the last value of the knob that trades memory.

    Attributes:
        knob: knob of the choice; "" if no knob changes the memory per sample.
        value: its value.
        traded: value of the knob that trades memory for time, such as the number of checkpointed blocks; 0 without one.
        length: sequence length of the batches; None for the loader's.
        sizes: micro batch sizes, ascending.
        parts: bytes at the peak by kind of tensor, one for each size. They sum to the peak.
    """

    knob: str = ""
    value: KnobValue = ""
    traded: int = 0
    length: int | None = None
    sizes: tuple[int, ...]
    parts: dict[str, tuple[int, ...]]


class Estimation(Strict):
    """The memory that a workload's training will need on a device where it has not run. `print` shows it as text.

    Attributes:
        schema_name: the record's schema and version.
        target: the factory that was estimated, or "" for objects that were passed in.
        environment: the device, the versions that the traces depend on, the workload's signature.
        budget: the limit on memory, with its arithmetic.
        ranks: number of ranks that train together. All figures are of the one that needs the most memory.
        account: how the device accounts for memory. A caveat names the origin of its figure for memory outside the
            allocator.
        own: the baseline.
        breakdown: the parts of the baseline's peak.
        traded: the knob that `needs` are about; its texts are "" without one.
        rows: what fits, by choice.
        shortfall: why nothing fits, by how much, and what would help; "" if something fits.
        laws: peaks of each choice at several micro batches, for the what-if page; () if they were not asked for.
        sequence_length: T of the loader's batches, [B, T, ...]; None if their tensors have not one in common.
        caveats: notes to read before relying on the estimate.
        refused: values and strategies that would change memory and are left out, with the reason.
        duration_s: duration of the estimate in seconds.
        created: UTC time in ISO 8601.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["autofit.estimate/1"] = Field(default="autofit.estimate/1", alias="schema")
    target: str = ""
    environment: Environment
    budget: Budget
    ranks: int = 1
    account: Account
    own: EstimatedPlan
    breakdown: Breakdown
    traded: TradedKnob = TradedKnob()
    rows: tuple[Row, ...]
    shortfall: str = ""
    laws: tuple[PeakLaw, ...] = ()
    sequence_length: int | None = None
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    duration_s: float = 0.0
    created: str = ""

    def __str__(self) -> str:
        return draw(self)


_SHOWN, _REFUSED = 8, 3
_LEAST_SHARE = 0.01
_LEAST_NAME, _MOST_NAME = 16, 44
_INDENT = 2
_GLUE = "\N{NO-BREAK SPACE}"
_PLURALS: dict[str, str] = {
    Kind.PARAMETER: "parameters",
    Kind.BUFFER: "buffers",
    Kind.GRADIENT: "gradients",
    Kind.ACTIVATION: "activations",
    Kind.TEMPORARY: "temporaries",
    Kind.WORKSPACE: "workspaces of libraries",
}


def devices_of(estimation: Estimation) -> str:
    """Returns the device in words; with several ranks how many there are, since all figures are of one."""
    name = estimation.environment.device_name
    return name if estimation.ranks == 1 else f"{estimation.ranks} x {name}, per rank"


def draw(estimation: Estimation, canvas: Canvas | None = None) -> str:
    """Returns the estimation for a person to read, ending without a newline."""
    canvas = canvas or Canvas()
    e, parts = estimation, estimation.breakdown
    always = " + ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts.standing)
    sections = [
        _head(e, canvas),
        _baseline(e, canvas),
        _bars(parts.kinds, sum(part.size_bytes for part in parts.kinds), canvas),
        _modules(parts.modules, canvas),
        ["", *_wrapped(f"At any batch size: {always} = {format_bytes(parts.fixed_bytes)}", canvas)],
        ["", *_table(e, canvas)],
        _notes(e, canvas),
    ]
    return "\n".join(line.rstrip() for section in sections for line in section)


def _head(e: Estimation, canvas: Canvas) -> list[str]:
    target = f"{printable(e.target)} on " if e.target else "On "
    lines = _wrapped(f"{target}{printable(devices_of(e))}: estimated, nothing was run", canvas)
    budget = f"budget  {e.budget.memory_note or format_bytes(e.budget.memory_bytes)}"
    if e.account.outside_bytes:
        inside = format_bytes(e.budget.memory_bytes - e.account.outside_bytes)
        budget += f", less {format_bytes(e.account.outside_bytes)} for {OUTSIDE} leaves {inside} to the allocator"
    options = f"; its options: {printable(e.account.settings)}" if e.account.settings else ""
    return [*lines, *_wrapped(budget + options, canvas, " " * 8)]


def _baseline(e: Estimation, canvas: Canvas) -> list[str]:
    peak, parts = e.own.peak, e.breakdown
    verdict = "fits" if e.own.fits else f"does not fit, by {format_bytes(peak.value_bytes - e.budget.memory_bytes)}"
    bound = "" if peak.upper_bytes is None else f" (at most {format_bytes(peak.upper_bytes)})"
    choice = next((f", {row.name}" for row in e.rows if row.name and _is_baseline(row, e)), "")
    plan, size = describe_plan(e.own.plan, e.own.plan), format_bytes(peak.value_bytes)
    if e.ranks > 1:
        micro, steps = e.own.plan.micro_batch_size, e.own.plan.accumulation_steps
        plan += f" on each of {e.ranks} ranks (global batch {e.ranks * micro * steps})"
    text = f"The baseline, {plan}{choice}, peaks at {size}{bound}: "
    lines = ["", *_wrapped(text + verdict.replace(" ", _GLUE) + ".", canvas)]
    lines[-1] = lines[-1].replace(verdict.replace(" ", _GLUE), canvas.paint(verdict, "good" if e.own.fits else "bad"))
    readings = f"Live tensors peak at {format_bytes(parts.allocated_bytes)}, in {parts.moment}"
    if parts.reserved_bytes is not None:
        readings += f"; the allocator's segments at {format_bytes(parts.reserved_bytes)}; with {OUTSIDE}, the total is "
        readings += f"{format_bytes(peak.value_bytes)}"
    return [*lines, *_wrapped(readings + ".", canvas)]


def _is_baseline(row: Row, e: Estimation) -> bool:
    return same_value(row.value, e.own.plan.values.get(row.knob, ""))


def _modules(parts: Sequence[Part], canvas: Canvas) -> list[str]:
    """Returns the bars of the largest modules; none if the peak is outside all modules' passes."""
    total = sum(part.size_bytes for part in parts)
    shown = [part for part in parts[:_SHOWN] if part.size_bytes >= _LEAST_SHARE * total]
    rest = parts[len(shown) :]
    if len(parts) < 2:
        return []
    if rest:
        shown.append(Part(name="others", size_bytes=sum(part.size_bytes for part in rest), count=len(rest)))
    return ["", "Activations and temporaries by module:", *_bars(shown, total, canvas)]


def _bars(parts: Sequence[Part], total_bytes: int, canvas: Canvas) -> list[str]:
    """Returns a line for each part: its name, a bar relative to the largest, its size and its share."""
    names = [plural(printable(part.name)) + (f" x{part.count}" if part.count > 1 else "") for part in parts]
    room = canvas.width - _INDENT - 19
    name_cells = min(max([_LEAST_NAME, *map(len, names)]), _MOST_NAME, room - 8)
    most = max((part.size_bytes for part in parts), default=1) or 1
    # The beginning of a long name is cut, because the end says more.
    names = [name if len(name) <= name_cells else f"..{name[len(name) - name_cells + 2 :]}" for name in names]
    return [
        f"{'':{_INDENT}}{name:{name_cells}} "
        f"{canvas.bar(part.size_bytes / most, room - name_cells - 2)} "
        f"{format_bytes(part.size_bytes):>10} {part.size_bytes / max(total_bytes, 1):>4.0%}"
        for name, part in zip(names, parts, strict=True)
    ]


def plural(kind: str) -> str:
    """Returns the plural of a kind of tensor; any other name unchanged."""
    return _PLURALS.get(kind, kind)


def _table(e: Estimation, canvas: Canvas) -> Iterator[str]:
    """Yields the table of what fits, one line per choice."""
    wanted = [need.micro_batch_size for need in next((row.needs for row in e.rows if row.needs), ())]
    title = PRECISION if all(row.knob in ("", PRECISION) for row in e.rows) else "choice"
    heads = [title, "largest", "sure", "peak", "at best", *(f"for {size}" for size in wanted)]
    cells = [heads, *(_cells(row, len(wanted), _is_baseline(row, e), e.traded) for row in e.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    text = "The largest micro batch that fits" + (" on each rank" if e.ranks > 1 else "")
    if wanted:
        technique, counted = printable(e.traded.technique), printable(e.traded.counted)
        text += f" without {technique}, and the fewest {counted} for micro batches of {' and '.join(map(str, wanted))}"
    yield from _wrapped(f"{text}:", canvas)
    for number, line in enumerate(cells):
        text = "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        yield f"{'':{_INDENT}}{canvas.paint(text, 'faint') if number == 0 else text}"
    for cap in dict.fromkeys(row.capped for row in e.rows if row.capped):
        yield f"{'':{_INDENT}}* {cap}"
    if any(row.largest is not None and row.largest.samples_per_s is not None for row in e.rows):
        ceilings = (
            "at best: samples/s at the device's peak rates; real steps are slower by a factor, so only compare lines"
        )
        if e.ranks > 1:
            ceilings += ". Those of one rank, without communication, which differs between layouts"
        yield from _wrapped(f"{'':{_INDENT}}{ceilings}", canvas, " " * _INDENT)
    for row in e.rows:
        if row.reason:
            yield from _wrapped(f"  {printable(row.name) or 'baseline'}: {printable(row.reason)}", canvas, "    ")


def _cells(row: Row, needs: int, is_baseline: bool, traded: TradedKnob) -> list[str]:
    shown = printable(row.name)
    name = f"{shown} (baseline)" if is_baseline and shown else shown or "baseline"
    if row.reason:
        return [name, "unknown", "", "", "", *[""] * needs]
    rate = None if row.largest is None else row.largest.samples_per_s
    best = "" if rate is None else f"{short_number(rate, 3)}/s"
    if row.same_as:
        return [name, f"as {printable(row.same_as)}", "", "", best, *[""] * needs]
    largest = ["none", "", "", ""]
    if row.largest is not None:
        star, sure = "*" if row.capped else "", "none" if row.surely is None else str(row.surely)
        largest = [f"{row.largest.plan.micro_batch_size}{star}", sure, format_bytes(row.largest.peak.value_bytes), best]
    for need in row.needs:
        most = f"not even {need.estimated.plan.values.get(traded.knob, 0)}" if need.estimated else "none"
        largest.append(most if need.blocks is None else str(need.blocks))
    return [name, *largest]


def _notes(e: Estimation, canvas: Canvas) -> list[str]:
    left_out = [f"{refused.name} is left out: {refused.reason}" for refused in e.refused]
    if len(left_out) > _REFUSED:
        names = ", ".join(refused.name for refused in e.refused)
        left_out = [f"left out: {names}. `refused` has the reasons: --json shows it"]
    notes = [*e.caveats, *left_out]
    lines = [line for note in notes for line in _wrapped(f"note  {printable(note)}", canvas, " " * 6)]
    if e.shortfall:
        lines += ["", *_wrapped(f"Nothing fits: {printable(e.shortfall)}", canvas)]
    return ["", *lines] if lines else []


def _wrapped(text: str, canvas: Canvas, indent: str = "") -> list[str]:
    return textwrap.wrap(text, canvas.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
