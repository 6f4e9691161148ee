"""What the user should know of a plan that its check has admitted."""

from collections.abc import Iterator, Mapping

from autofit.core.gate_verdict import ACCUMULATION, GateVerdict
from autofit.core.units import format_names
from autofit.workloads.micro_batch_weights import Weighing

NAMED = 3
"""Maximum number of names of a step's own state that are shown."""


def notes(verdicts: Mapping[str, GateVerdict], baseline_steps: int) -> Iterator[str]:
    """Yields the caveats that follow from the verdicts on the values of a plan.

    Args:
        verdicts: verdict by value. One that failed is allowed by numerics='any'.
        baseline_steps: accumulation steps of the baseline.
    """
    techniques = {value: verdict for value, verdict in verdicts.items() if value != ACCUMULATION}
    for verdict in dict.fromkeys(techniques.values()):
        names = ", ".join(value for value, each in techniques.items() if each == verdict)
        if not verdict.passed:
            yield f"{names}: {verdict.reason}; kept, as numerics='any' allows"
        elif not verdict.compared:
            yield f"{names}: the gradient was not compared with that of the baseline: {verdict.reason}"
        elif verdict.evaluated:
            yield f"{names}: {verdict.reason}. Compare the first losses of a training with those in float32"
    if (accumulation := verdicts.get(ACCUMULATION)) is not None:
        if not accumulation.passed:
            yield f"{ACCUMULATION}: {accumulation.reason}; kept, as numerics='any' allows"
        yield from _accumulation_notes(accumulation, baseline_steps)


def _accumulation_notes(verdict: GateVerdict, baseline_steps: int) -> Iterator[str]:
    """Yields the caveats about accumulation that follow from its gate."""
    if (weighing := Weighing.parse(verdict.weighing)) is not None:
        baseline = f", and so are the {baseline_steps} micro batches of the baseline" if baseline_steps > 1 else ""
        if weighing.summed:
            found = "a sum over samples, so that its gradient grows with the batch: micro batches are added up"
            other = "divides by their number"
        else:
            found = f"a mean over {weighing}: micro batches are weighted by it"
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
