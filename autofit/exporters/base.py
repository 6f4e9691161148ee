"""Exporter: writes a plan in another framework's words, and names the knobs that it could not say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.recommendation import Recommendation
from autofit.core.wording import describe_plan

Settings = Mapping[str, object]
"""Keys of the target with their values."""


@dataclass(frozen=True, slots=True)
class Export:
    """A plan in another framework's words.

    Attributes:
        text: the file's content, ending with a newline.
        filename: what the file is usually called.
        unmapped: knobs that the plan changes and the target has no words for, in the plan's order.
    """

    text: str
    filename: str
    unmapped: tuple[str, ...] = ()


class Exporter(ABC):
    """Writes a plan in another framework's words.

    `fields` and `render` are called once per export, by `export`, in the user's process or the command line's; torch
    need not be installed. Texts of a recommendation may come from a file of somebody else: what goes into the export
    is a number, a word of the exporter's own table, or quoted.

    Attributes:
        name: what `fit.export(name)` and the command line call it.
        filename: what the exported file is usually called.
        comment: begins a comment line in the target's language; "" where it has no comments.
    """

    name: ClassVar[str]
    filename: ClassVar[str]
    comment: ClassVar[str] = "# "

    @abstractmethod
    def fields(self, plan: Plan, recommendation: Recommendation) -> Mapping[str, Settings]:
        """Returns the target's settings for each knob of `plan` that it can say, by the name of the knob.

        A knob whose value is what the target does anyway has empty settings. A knob, or a value, that the target has
        no words for is left out: never invent a key.
        """

    @abstractmethod
    def render(self, settings: Settings, recommendation: Recommendation) -> str:
        """Returns the file's text for the settings of all knobs together, without the leading comment."""

    @final
    def export(self, recommendation: Recommendation) -> Export:
        """Returns the plan in the target's words. What the target cannot say is listed, in the file too."""
        plan, own = recommendation.plan, recommendation.baseline.plan
        fields = self.fields(plan, recommendation)
        unmapped = tuple(knob for knob in plan.changes_from(own) if knob not in fields)
        settings = {key: value for said in fields.values() for key, value in said.items()}
        text = self._header(recommendation, unmapped) + self.render(settings, recommendation)
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
            lines.append(f"NOT in this file, {self.name} has no words for it; the measured speed and memory need it:")
        knobs = [f"  {one_line(f'{knob}={r.plan.values[knob]}')}" for knob in unmapped]
        return "".join(f"{self.comment}{line}\n" for line in [*map(one_line, lines), *knobs])
