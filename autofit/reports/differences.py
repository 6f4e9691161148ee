"""What differs between two plan files: what the plans bring, what they do, and where they were measured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autofit.core.answer import Answer
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.reports.canvas import Canvas
from autofit.reports.tables import Column, table
from autofit.terminal import wrapped

_NONE = "–"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of two plan files: of the "result", the "plan" or the "environment", with the change of a number."""

    part: str
    name: str
    before: str
    after: str
    change: str = ""


_PARTS = {"result": "What they bring", "plan": "What they do", "environment": "Where they were measured"}


def differences(before: Answer, after: Answer) -> list[Difference]:
    """Returns throughput, gain and peak of both files, and the values of plans and environments that differ."""
    found = [*_results(before, after)]
    for part, old, new in (
        ("plan", before.plan.values, after.plan.values),
        ("environment", _environment(before), _environment(after)),
    ):
        names = [*new, *(name for name in old if name not in new)]
        pairs = [(name.replace("_", " "), str(old.get(name, _NONE)), str(new.get(name, _NONE))) for name in names]
        found += [Difference(part, *pair) for pair in pairs if pair[1] != pair[2]]
    return found


def verdict(before: Answer, after: Answer) -> str:
    """Returns in a sentence how the second plan compares with the first, or why they cannot be compared."""
    if before.objective.unit != after.objective.unit:
        return f"One counts {before.objective.unit}, the other {after.objective.unit}: no ratio can be given."
    old, new = before.environment, after.environment
    for what, same in (("workload", old.workload == new.workload), ("device", old.device_name == new.device_name)):
        if not same:
            return f"Each plan is for another {what}: their throughputs are not compared."
    equal = "The plans are the same" if before.plan == after.plan else "The plans differ"
    if not before.rate_per_s or not after.rate_per_s:
        return f"{equal}; one of them has no throughput that is known."
    ratio = format_ratio(after.rate_per_s / before.rate_per_s)
    return f"{equal}. The second ran at {ratio} of the first one's throughput, each in its own search."


def to_text(before: Answer, after: Answer, names: tuple[str, str], canvas: Canvas) -> str:
    """Returns the differences for a terminal."""
    blocks = ["\n".join(canvas.paint(line, "title") for line in wrapped(verdict(before, after), canvas.width))]
    found = differences(before, after)
    for part, title in _PARTS.items():
        rows = [each for each in found if each.part == part]
        if not rows:
            continue
        columns = [
            Column(title, [each.name for each in rows]),
            Column(names[0], [each.before for each in rows], most=30),
            Column(names[1], [each.after for each in rows], most=30),
            Column("", [each.change for each in rows]),
        ]
        head, *lines = table(columns, canvas.width)
        blocks.append("\n".join([canvas.paint(head, "title"), *lines]))
    return "\n\n".join(blocks)


def to_dict(before: Answer, after: Answer) -> dict[str, Any]:
    """Returns the differences for JSON."""
    return {"verdict": verdict(before, after), "differences": [asdict(each) for each in differences(before, after)]}


def _results(before: Answer, after: Answer) -> Iterator[Difference]:
    def compared(name: str, value: Callable[[Answer], float | None], shown: Callable[[Any], str]) -> Difference:
        values = [value(each) for each in (before, after)]
        old, new = (_NONE if number is None else shown(number) for number in values)
        change = f"{values[1] / values[0] - 1:+.0%}" if values[0] and values[1] and old != new else ""
        return Difference("result", name, old, new, change)

    if before.objective.unit == after.objective.unit:
        yield compared(f"{after.objective.unit}/s", lambda r: r.rate_per_s, short_number)
    else:
        shown = [
            f"{short_number(r.rate_per_s)} {r.objective.unit}/s" if r.rate_per_s else _NONE for r in (before, after)
        ]
        yield Difference("result", "throughput", *shown)
    yield Difference("result", "over the baseline", *(str(r.gain) if r.gain else _NONE for r in (before, after)))
    yield compared("peak memory", lambda r: r.proof.memory.judged_bytes or None, format_bytes)
    yield compared("budget", lambda r: r.budget.memory_bytes, format_bytes)
    yield compared("samples per optimizer step", lambda r: r.global_batch(r.plan), lambda count: f"{count:,}")


def _environment(r: Answer) -> Mapping[str, object]:
    place = r.environment
    return {
        "workload": f"{r.title} {place.workload}".strip(),
        "device": f"{place.devices} ({place.device_type}), {format_bytes(place.capacity_bytes)}",
        "threads": str(place.threads or _NONE),
        **place.versions,
        **place.settings,
    }
