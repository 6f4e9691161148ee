"""Exporter: writes a plan as code or settings for another framework, and lists the knobs it cannot express."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.recommendation import Recommendation
from autofit.core.wording import describe_plan

Settings = Mapping[str, object]
"""Settings of the target, by key."""


@dataclass(frozen=True, slots=True)
class Export:
    """A plan as code or settings for another framework.

    Attributes:
        text: content of the file, ending with a newline.
        filename: usual name of the file.
        unmapped: knobs that the plan changes and the target cannot express, in the plan's order.
    """

    text: str
    filename: str
    unmapped: tuple[str, ...] = ()


class Exporter(ABC):
    """Writes a plan as code or settings for another framework.

    `export` calls `fields` and `render` once each, in the user's process or that of the command line; torch need not be
    installed. A recommendation may come from an untrusted file: every value in an export is a number, a
    constant from the exporter's own table, or quoted text.

    Attributes:
        name: name for `fit.export(name)` and `autofit export --to name`.
        filename: usual name of the exported file.
        comment: start of a comment line in the target's language; "" if it has no comments.
    """

    name: ClassVar[str]
    filename: ClassVar[str]
    comment: ClassVar[str] = "# "

    @abstractmethod
    def fields(self, plan: Plan, recommendation: Recommendation) -> Mapping[str, Settings]:
        """Returns the target's settings for each knob of `plan` that it can express, by name of the knob.

        A knob whose value is the target's default has empty settings. Leave out a knob or value that the target cannot
        express. Never invent a key.
        """

    @abstractmethod
    def render(self, settings: Settings, recommendation: Recommendation) -> str:
        """Returns the text of the file for the settings of all knobs, without the leading comment."""

    @final
    def export(self, recommendation: Recommendation) -> Export:
        """Returns the plan for the target. Knobs that it cannot express are listed in the result and in the file."""
        plan, baseline = recommendation.plan, recommendation.baseline.plan
        fields = self.fields(plan, recommendation)
        unmapped = tuple(knob for knob in plan.changes_from(baseline) if knob not in fields)
        merged = {key: value for settings in fields.values() for key, value in settings.items()}
        text = self._header(recommendation, unmapped) + self.render(merged, recommendation)
        return Export(text=text.rstrip("\n") + "\n", filename=self.filename, unmapped=unmapped)

    def _header(self, recommendation: Recommendation, unmapped: tuple[str, ...]) -> str:
        if not self.comment:
            return ""
        r = recommendation
        torch = r.environment.versions.get("torch", "unknown")
        lines = [
            f"autofit plan: {describe_plan(r.plan, r.baseline.plan)}",
            f"measured on {r.environment.device_name} with torch {torch}" + (f": {r.gain}" if r.gain else ""),
        ]
        if unmapped:
            lines.append(
                f"NOT in this file, because {self.name} cannot express it; the measured speed and memory depend on it:"
            )
        knobs = [f"  {one_line(f'{knob}={r.plan.values[knob]}')}" for knob in unmapped]
        return "".join(f"{self.comment}{line}\n" for line in [*map(one_line, lines), *knobs])
