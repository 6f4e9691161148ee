"""Diagnosis: what the doctor found in a training, as records that reach a file, and its text."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from autofit.core.answer import Ratio
from autofit.core.printable import printable
from autofit.core.strict import Strict
from autofit.core.units import format_bytes, format_ratio
from autofit.memory.profile import Profile
from autofit.reports.canvas import Canvas
from autofit.reports.sentences import counted, interval_text
from autofit.terminal import wrapped

Basis: TypeAlias = Literal["measured", "replayed", "counted"]
Bound: TypeAlias = Literal["", "at most", "at least"]
LEAST_RATIO = 0.01
"""Smallest share of the peak, or of the budget after `MANY_STEPS` steps of growth, from which a finding is shown."""
LEAST_BYTES = 2**20
"""Smallest finding at the peak that is shown."""
MANY_STEPS = 10_000
_PARTS = 5
"""Maximum number of parts of the peak in a text."""


class Place(Strict):
    """Where something happens.

    Attributes:
        line: innermost line of the user's code, such as "train.py:16"; "" if there is none.
        library: innermost line outside torch if it is not the user's.
        module: qualified name of the module in whose pass it happens; "" for none.
        holder: the variable that holds a tensor, such as "`outputs['logits']` in train_step (train.py:16)".
    """

    line: str = ""
    library: str = ""
    module: str = ""
    holder: str = ""


class Size(Strict):
    """What a finding costs: exactly one of these.

    Attributes:
        peak_bytes: bytes by which the peak would be lower.
        bytes_per_step: bytes by which the memory of the device grows in each step.
        host_bytes_per_step: bytes by which main memory grows in each step, in this process or the loader's workers.
        basis: "measured" if steps ran with the change, "replayed" if the record of a step was replayed with it,
            "counted" if bytes were added up.
        bound: "at most" or "at least" if the figure is a bound.
    """

    peak_bytes: int | None = None
    bytes_per_step: int | None = None
    host_bytes_per_step: int | None = None
    basis: Basis = "replayed"
    bound: Bound = ""

    @model_validator(mode="after")
    def _check(self) -> "Size":
        if sum(each is not None for each in (self.peak_bytes, self.bytes_per_step, self.host_bytes_per_step)) != 1:
            raise ValueError("a finding has exactly one size")
        return self


class Finding(Strict):
    """One thing that wastes memory or time.

    Attributes:
        id: kind of finding, such as "dead-at-peak".
        what: what was found and where, in one sentence.
        remedy: what to change.
        places: where it happens, the largest first.
        size: what it costs; None for a finding without a size of its own.
        evidence: further facts, one sentence each.
        confirmed: the change with which steps were run to measure the size; "" if none was.
        speed: how many times as fast steps are with that change; None if that is within the noise, or not measured.
        minor: whether it is below the limits from which findings are shown.
    """

    id: str
    what: str
    remedy: str
    places: tuple[Place, ...] = ()
    size: Size | None = None
    evidence: tuple[str, ...] = ()
    confirmed: str = ""
    speed: Ratio | None = None
    minor: bool = False


class Unchecked(Strict):
    """A kind of finding that was not looked for.

    Attributes:
        id: kind of finding.
        reason: why not.
    """

    id: str
    reason: str


class Diagnosis(Strict):
    """What the doctor found.

    Attributes:
        target: name of what was observed.
        device_name: the manufacturer's name of the device.
        device_type: "cpu", "cuda", ...
        versions: version by name: python, torch, autofit, ...
        samples: samples of an observed step; None if unknown.
        steps: number of observed steps.
        peak_bytes: peak of live tensors in the judged step.
        budget_bytes: memory that the training may use.
        profile: the memory of the judged step over time, and what makes up its peak.
        unread: for each point of `profile.live_bytes`, the part of it that nothing reads again.
        levels: live bytes at the end of each observed step.
        findings: what was found, the costliest first; minor ones last.
        checked: the kinds of findings that were looked for.
        unchecked: the others, with the reason.
        notes: what else a reader must know, such as that compiled code was observed without being compiled.
        failed: whether the user's code failed before all steps were observed; the notes say how.
        duration_s: seconds that the observation took.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["autofit.doctor/1"] = Field(default="autofit.doctor/1", alias="schema")
    target: str
    device_name: str
    device_type: str
    versions: dict[str, str]
    samples: int | None
    steps: int
    peak_bytes: int
    budget_bytes: int
    profile: Profile
    unread: tuple[int, ...]
    levels: tuple[int, ...]
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    unchecked: tuple[Unchecked, ...]
    notes: tuple[str, ...] = ()
    failed: bool = False
    duration_s: float

    def __str__(self) -> str:
        return draw(self)


def draw(diagnosis: Diagnosis, canvas: Canvas | None = None, *, minor: bool = False) -> str:
    """Returns the diagnosis for a person to read, ending without a newline. `minor` shows minor findings too."""
    canvas = canvas or Canvas()
    lines = list(_head(diagnosis, canvas.width))
    shown = [finding for finding in diagnosis.findings if minor or not finding.minor]
    for number, finding in enumerate(shown, 1):
        lines += ["", f"{number:>2}  {canvas.paint(finding.id, 'bad')}  {cost(diagnosis, finding)}".rstrip()]
        lines += wrapped(f"{_sentence(finding.what)}.", canvas.width, "    ", "    ")
        lines += wrapped(f"To change: {printable(finding.remedy)}.", canvas.width, "    ", "    ")
        if finding.confirmed:
            lines += wrapped(measured(finding), canvas.width, "    ", "    ")
        lines += [line for text in finding.evidence for line in wrapped(printable(text), canvas.width, "    ", "    ")]
    return "\n".join([*lines, "", *_foot(diagnosis, len(shown), canvas.width)])


def _head(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    d, samples = diagnosis, "" if diagnosis.samples is None else f" of {counted(diagnosis.samples, 'sample')}"
    yield from wrapped(
        f"{printable(d.target)}: watched {counted(d.steps, 'step')}{samples} on {printable(d.device_name)}", width
    )
    parts = ", ".join(f"{part.name} {format_bytes(part.size_bytes)}" for part in d.profile.breakdown.kinds[:_PARTS])
    phase = d.profile.breakdown.moment.rpartition(" ")[2]
    when = f", in {phase}: {parts}" if parts else ""  # a loop may compute nothing
    yield from wrapped(f"peak of live tensors {format_bytes(d.peak_bytes)}{when}", width)
    for note in d.notes:
        yield from wrapped(f"note: {printable(note)}", width, "", "      ")


def _foot(diagnosis: Diagnosis, shown: int, width: int) -> Iterator[str]:
    hidden = len(diagnosis.findings) - shown
    found = {finding.id for finding in diagnosis.findings}
    silent = sum(1 for name in diagnosis.checked if name not in found)
    text = f"checked: {counted(len(diagnosis.checked), 'kind')} of findings, nothing found in {silent}"
    yield from wrapped(f"{text}; minor: {hidden} (--all shows them)" if hidden else text, width)
    for reason in dict.fromkeys(each.reason for each in diagnosis.unchecked):
        names = ", ".join(each.id for each in diagnosis.unchecked if each.reason == reason)
        yield from wrapped(f"not checked, because {printable(reason)}: {names}", width, "", "  ")


def cost(diagnosis: Diagnosis, finding: Finding) -> str:
    """Returns what a finding costs, in words; "" if it has no size."""
    size = finding.size
    if size is None or size.peak_bytes == 0:
        return ""
    bound = f"{size.bound} " if size.bound else ""
    if size.bytes_per_step is not None:
        return f"+{format_bytes(size.bytes_per_step)} per step"
    if size.host_bytes_per_step is not None:
        return f"{bound}+{format_bytes(size.host_bytes_per_step)} of main memory per step"
    assert size.peak_bytes is not None, "a size has one figure"
    share = size.peak_bytes / max(diagnosis.peak_bytes, 1)
    if share > 1:  # of a higher step than the judged one
        return f"{bound}{format_bytes(size.peak_bytes)}, {size.basis}"
    return f"{bound}{format_bytes(size.peak_bytes)} of the peak ({share:.0%}), {size.basis}"


def measured(finding: Finding) -> str:
    """Returns with which change a finding was measured and how fast it makes the steps, as a sentence."""
    speed = finding.speed
    faster = "" if speed is None else f"; it makes steps {format_ratio(speed.value)} as fast ({interval_text(speed)})"
    return f"Measured with this change: {printable(finding.confirmed)}{faster}."


def _sentence(text: str) -> str:
    return printable(text[:1].upper() + text[1:])
