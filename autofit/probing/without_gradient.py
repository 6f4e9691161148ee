"""Parameters that the optimizer holds and that get no gradient: whatever trains, they stay as they are."""

from dataclasses import dataclass, field

from autofit.core.outcome import Outcome
from autofit.core.units import format_names
from autofit.workloads.step import TrainStep

_NAMED = 3
"""Maximum number of parameters that are named."""


@dataclass(slots=True)
class GradientWatch:
    """Looks at the gradients of steps, right before the optimizer uses them.

    Attributes:
        missing: names of the trained parameters that had no gradient in any step so far.
        trained: number of trained parameters.
        steps: number of steps that were looked at.
    """

    missing: list[str] = field(default_factory=list)
    trained: int = 0
    steps: int = 0

    def look(self, step: TrainStep) -> None:
        """Looks at the gradients if the optimizer is about to use them. Call it at the start of each phase."""
        draft = step.draft
        if step.phase != "optimizer" or draft.optimizer is None or draft.one_pass:
            return  # where gradients are used up in the backward pass, none is left here
        if self.steps and not self.missing:
            return
        held = {id(parameter) for group in draft.optimizer.param_groups for parameter in group["params"]}
        trained = {n: p for n, p in draft.model.named_parameters() if p.requires_grad and id(p) in held}
        known = self.missing if self.steps else trained
        self.missing = [name for name in known if name in trained and trained[name].grad is None]
        self.trained, self.steps = len(trained), self.steps + 1

    def noted(self, outcome: Outcome) -> Outcome:
        """Returns the outcome with what was found. If no parameter has a gradient, the user's code has used them up."""
        measurement, found = outcome.measurement, len(self.missing)
        if measurement is None or not 0 < found < self.trained:
            return outcome
        text = f"{found} of {self.trained} trained parameters ({format_names(self.missing, _NAMED)}) had no gradient"
        text = f"{text} in any of {self.steps} steps"
        return outcome.model_copy(update={"measurement": measurement.model_copy(update={"without_gradient": text})})
