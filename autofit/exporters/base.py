"""Exporter: writes a plan as code or settings for another framework, and lists the knobs it cannot express."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import ClassVar, Self, final

from autofit.core.answer import Answer
from autofit.core.environment import UPDATE
from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.core.printable import one_line
from autofit.core.wording import describe_plan
from autofit.exporters.plan_facts import (
    BF16,
    LAYOUT,
    MEASURED_WITH,
    Settings,
    changes_of,
    gathers_in_bf16,
    has_fixed_batches,
    max_grad_norm,
    weighing_of,
)

_RELEASE = re.compile(r"\d{1,6}(\.\d{1,6})*")


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """For which version of a framework a plan is exported.

    Attributes:
        text: the version whose keys are written, such as "5.23.0"; "" if the keys depend on no version.
        warnings: a note if another version was asked for, or is installed, whose keys are not known.
    """

    text: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: str | None, target: str, package: str, oldest: str, newest: str) -> Self:
        """Returns the version to export for: the one asked for, or else the installed one, or else the newest known.

        A version beyond the known ones gets the keys of the nearest of them, and a warning. Nothing is imported.

        Raises:
            UsageError: `asked` is not a version, or the keys depend on no version.
        """
        if not package:
            if asked is not None:
                raise UsageError(
                    f"found the version {one_line(asked)!r} for {target}, whose export depends on no version; expected "
                    "none. Leave it out."
                )
            return cls()
        if asked is not None and not _RELEASE.match(asked):
            raise UsageError(
                f"found the version {one_line(asked)!r} for {target}; expected one of {package}, such as {newest}."
            )
        found = asked or newest
        if asked is None:
            with suppress(PackageNotFoundError):  # it is not installed
                installed = installed_version(package)
                found = installed if _RELEASE.match(installed) else newest
        nearest = oldest if release(found) < release(oldest) else newest if release(found) > release(newest) else found
        if nearest == found or release(found)[: len(release(newest))] == release(newest):
            return cls(found)
        what = f"{package} {one_line(found)}" + ("" if asked else ", which is installed,")
        return cls(
            nearest,
            (f"{what} is not known: expected {oldest} to {newest}. The keys are those of {nearest}: check them",),
        )

    def __ge__(self, other: str) -> bool:
        """Returns whether the version is at least another one, such as "5.23"."""
        return release(self.text) >= release(other)

    def __lt__(self, other: str) -> bool:
        """Returns whether the version is below another one."""
        return not self >= other


def release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version: (5, 23, 0) for "5.23.0.dev1"."""
    match = _RELEASE.match(version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


@dataclass(frozen=True, slots=True)
class Export:
    """A plan as code or settings for another framework.

    Attributes:
        text: content of the file, ending with a newline.
        filename: usual name of the file.
        unmapped: knobs that the plan changes and the target cannot express, in the plan's order.
        by_hand: for each knob that the target expresses only in the user's code, the line to write there.
        target_version: version of the target whose keys the file has; "" if its keys depend on no version.
        warnings: what to know before the file is used.
        settings: the target's settings of all knobs in the file, of the loader and of clipping, by key.
    """

    text: str
    filename: str
    unmapped: tuple[str, ...] = ()
    by_hand: Mapping[str, str] = field(default_factory=dict)
    target_version: str = ""
    warnings: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)


_KEEP_LOADER = (
    "the plan was measured with the batches of your own loader, of about {size} samples, since it makes no others: "
    "keep this loader, whatever batch size is set"
)


class Exporter(ABC):
    """Writes a plan as code or settings for another framework.

    `export` calls `fields`, `by_hand`, `caveats` and `render` once each, in the user's process or in that of the
    command line. Neither torch nor the target needs to be installed. An answer may come from an untrusted file:
    every value in an export is a number, a constant from the exporter's own table, or quoted text.

    Attributes:
        name: name for `fit.export(name)` and `autofit export --to name`.
        filename: usual name of the exported file.
        comment: start of a comment line in the target's language; "" if it has no comments.
        package: distribution whose version decides the keys; "" if they depend on no version.
        oldest: oldest version of the package whose keys are known.
        newest: newest version of the package whose keys are known.
        infers: whether it can express a plan for inference, whose batch does not fit in training.
        counts: the target's key of each knob whose values are positive integers.
        table: the target's settings by knob and value, where these depend on nothing else.
        lines: lines for the user's code by knob and value, where these depend on nothing else.
        clipping_key: the target's key for the L2 norm to which gradients are clipped; "" if it has none.
        weighs_alike: the target, as the subject of a sentence, if it divides the loss of each micro batch by the
            accumulation steps; "" if it weights micro batches as the plan does.
        unless: when it does not do so, as the end of a sentence that begins with a comma; "" for never.
        divides_otherwise: how the target divides a training among ranks in another way than the plan, by layout.
        casts_otherwise: the same for what only 16 bits change; by "bf16" for plans that gather weights in it.
    """

    name: ClassVar[str]
    filename: ClassVar[str]
    comment: ClassVar[str] = "# "
    package: ClassVar[str] = ""
    oldest: ClassVar[str] = ""
    newest: ClassVar[str] = ""
    infers: ClassVar[bool] = False
    counts: ClassVar[Mapping[str, str]] = {}
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {}
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {}
    clipping_key: ClassVar[str] = ""
    weighs_alike: ClassVar[str] = ""
    unless: ClassVar[str] = ""
    divides_otherwise: ClassVar[Mapping[KnobValue, str]] = {}
    casts_otherwise: ClassVar[Mapping[KnobValue, str]] = {}

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the target's settings for each knob of the plan that it can express, by name of the knob.

        The settings of `counts` and `table` are returned. Override it for settings that depend on more than the value
        of one knob. A knob whose value is the target's default has empty settings. Leave out a knob or value that the
        target cannot express. Never invent a key.
        """
        found: dict[str, Settings] = {}
        for knob, value in answer.plan.values.items():
            if knob in self.counts and type(value) is int and value > 0:
                found[knob] = {self.counts[knob]: value}
            elif (settings := self.table.get(knob, {}).get(value)) is not None:
                found[knob] = settings
        return found

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns for each knob that the target expresses only in the user's code the line to write there.

        The lines of `lines` are returned. A knob of `fields` is ignored here, except for the layout, which often needs
        both a setting and a line.
        """
        found = ((knob, self.lines.get(knob, {}).get(value)) for knob, value in answer.plan.values.items())
        return {knob: line for knob, line in found if line}

    def caveats(self, answer: Answer) -> Sequence[str]:
        """Returns how the target trains in another way than the plan, for this plan; each without a full stop.

        What `weighs_alike` means for the gradient is returned, and what is known of the plan's layout.
        """
        return (*self._of_weighing(answer), *self._of_layout(answer))

    def _of_layout(self, answer: Answer) -> Sequence[str]:
        layout, casts = answer.plan.values.get(LAYOUT, ""), answer.plan.values.get("precision") in ("bf16", "fp16")
        gathered = BF16 if gathers_in_bf16(answer) else layout
        ways = (self.divides_otherwise.get(layout), self.casts_otherwise.get(gathered) if casts else None)
        differences = "; ".join(way for way in ways if way)
        measured = f"the plan was measured with {MEASURED_WITH.get(layout)}"
        return (f"{measured}; {differences}. Measure speed and memory again",) if differences else ()

    def _of_weighing(self, answer: Answer) -> Sequence[str]:
        weighing, who, unless = weighing_of(answer), self.weighs_alike, self.unless
        if weighing is None or not who:
            return ()
        if weighing.summed:
            steps = answer.plan.accumulation_steps
            return (
                f"the loss is a sum over samples, and {who} divides it by the {steps} accumulation steps{unless}: "
                f"multiply the loss by {steps}",
            )
        return (
            f"the loss is a mean over {weighing}, and the plan weights micro batches by it; {who} weights those of a "
            f"step alike{unless}. If micro batches differ in it, the gradient differs from the plan's",
        )

    def loading(self, answer: Answer) -> Settings:
        """Returns the target's settings of the loader's worker processes, if these were chosen. No knob has them."""
        return {}

    def clipping(self, answer: Answer) -> Settings:
        """Returns the target's settings that clip gradients as the plan was measured. No knob has them.

        A plan without clipping leaves the user's own. A target without a `clipping_key` says so in `caveats`.
        """
        norm = max_grad_norm(answer) if self.clipping_key else None
        return {} if norm is None else {self.clipping_key: norm}

    @abstractmethod
    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the text of the file for all settings of the export, without the leading comment."""

    @final
    def export(self, answer: Answer, target_version: str | None = None) -> Export:
        """Returns the plan for the target. Knobs that it cannot express are listed in the result and in the file.

        `target_version` is such as "4.57"; None for the installed version, or else the newest that is known.

        Raises:
            UsageError: the target has no version or `target_version` is not one, or it cannot express the plan's batch,
                so that the global batch would be another, or it only trains and the plan is for inference, or the
                user's `update_fn` does the step.
        """
        self._check_step(answer)
        version = TargetVersion.of(target_version, self.name, self.package, self.oldest, self.newest)
        plan, fields = answer.plan, self.fields(answer, version)
        changes = changes_of(answer)
        lines = self.by_hand(answer, version).items()
        by_hand = {knob: line for knob, line in lines if knob in changes and (knob not in fields or knob == LAYOUT)}
        unmapped = tuple(knob for knob in changes if knob not in fields and knob not in by_hand)
        if lost := [knob for knob in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS) if knob in unmapped]:
            batch = ", ".join(one_line(f"{knob}={plan.values[knob]}") for knob in lost)
            raise UsageError(
                f"the plan was not exported: found {batch}, which {self.name} cannot express, so that it would train "
                "with another global batch; expected a plan whose batch it can express. Choose another target."
            )
        merged = {key: value for settings in fields.values() for key, value in settings.items()}
        merged |= {**self.loading(answer), **self.clipping(answer)}
        fixed = (_KEEP_LOADER.format(size=plan.micro_batch_size),) if has_fixed_batches(answer) else ()
        warnings = (*version.warnings, *fixed, *self.caveats(answer))
        found = Export("", self.filename, unmapped, by_hand, version.text, warnings, merged)
        text = self._header(answer, found) + self.render(merged, answer)
        return replace(found, text=text.rstrip("\n") + "\n")

    def _check_step(self, answer: Answer) -> None:
        """Refuses a plan for another step than that of the target."""
        if answer.environment.is_inference and not self.infers:
            raise UsageError(
                "the plan was not exported: found a plan for inference, whose batch does not fit in training; expected "
                f"one for training, which is all that {self.name} does. Tune with mode='train'."
            )
        if UPDATE in answer.environment.settings:
            raise UsageError(
                f"the plan was not exported: found a plan for a step that update_fn does, which {self.name} cannot "
                "express; expected a step with a loss. Train with fit.prepare(model, loader, optimizer, "
                "update_fn=update_fn)."
            )

    def _header(self, answer: Answer, found: Export) -> str:
        if not self.comment:
            return ""
        plan, place = answer.plan, answer.environment
        torch, gain = place.versions.get("torch", "unknown"), f": {answer.gain}" if answer.gain else ""
        absent = f"NOT in this file, because {self.name} cannot express it; the measured speed and memory depend on it:"
        lines = [
            f"autofit plan: {describe_plan(plan, answer.baseline.plan)}",
            f"measured on {place.device_name} with torch {torch}{gain}",
            *([f"for {self.package} {found.target_version}"] if found.target_version else []),
            *found.warnings,
            *(["To do in your code:"] if found.by_hand else []),
            *(f"  {knob}: {line}" for knob, line in found.by_hand.items()),
            *([absent] if found.unmapped else []),
            *(f"  {knob}={plan.values[knob]}" for knob in found.unmapped),
        ]
        # Text from a plan stays on one line, with its indent.
        return "".join(f"{self.comment}{'  ' * line.startswith('  ')}{one_line(line)}\n" for line in lines)
