"""What the user should know of a technique that a gate has admitted."""

from collections.abc import Iterator

from autofit.core.units import format_names
from autofit.probing.survey.gate_result import GateResult

NAMED = 3
"""Maximum number of names of a step's own state that are shown."""


def precision_notes(what: str, verdict: GateResult) -> Iterator[str]:
    """Yields a caveat about a precision whose gradient could not be compared as the model trains (`conditioning`)."""
    if verdict.passed and verdict.evaluated:
        yield f"{what}: {verdict.reason}. Compare the first losses of a training with those in float32"


def accumulation_notes(verdict: GateResult, baseline_steps: int) -> Iterator[str]:
    """Yields the caveats about accumulation that follow from its gate."""
    if verdict.weighing is not None:
        baseline = f", and so are the {baseline_steps} micro batches of the baseline" if baseline_steps > 1 else ""
        if verdict.weighing.summed:
            found = "a sum over samples, so that its gradient grows with the batch: micro batches are added up"
            other = "divides by their number"
        else:
            found = f"a mean over {verdict.weighing}: micro batches are weighted by it"
            other = "weights them equally, or by samples,"
        yield (
            f"the loss is {found}{baseline}, so that the step equals that of the whole batch. A loop that {other} has "
            "a different gradient"
        )
    if verdict.moves:
        yield (
            f"the step changes {format_names(verdict.moves, NAMED)} by itself, once for each micro batch: with "
            "accumulation, several times per optimizer step. If that matters (a moving average), change it after the "
            "optimizer's step instead"
        )
    if verdict.passed and verdict.evaluated:
        yield (
            "accumulation was checked in evaluation mode, because in training the step draws random numbers that a "
            "batch and its micro batches cannot share: behaviour that is specific to training was not compared. If "
            "samples of a batch interact in training (custom batch normalisation, a balance term), keep the micro "
            "batches of the baseline"
        )
