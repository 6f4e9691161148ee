"""Result of a gate, and the verdict on two sides that may differ by the rounding of another precision."""

from dataclasses import dataclass

from autofit.core.gate_verdict import GateVerdict
from autofit.workloads.micro_batch_weights import Weighing

PRECISION_COSINE = 0.999
PRECISION_L2 = 0.05
"""Limits of a precision gate: measured were a relative L2 of about 1e-2 and a cosine of 0.9999 for bf16 autocast
(reference/reliability.md 8)."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a technique keeps the gradient, with the reason.

    Attributes:
        passed: whether it keeps the gradient.
        reason: what was compared, found and allowed; after a failure, also what to do.
        weighing: quantity by which micro batches must be weighted; None: their number of samples.
        moves: names of state that the step itself changes in each micro batch.
        evaluated: whether the comparison was made in evaluation mode, so that behaviour specific to training was not
            compared.
        checked: whether the gate has a result. Without one the technique does not pass.
    """

    passed: bool
    reason: str
    weighing: Weighing | None = None
    moves: tuple[str, ...] = ()
    evaluated: bool = False
    checked: bool = True

    @property
    def verdict(self) -> GateVerdict:
        """The result as a study keeps it."""
        return GateVerdict(
            passed=self.passed,
            reason=self.reason,
            weighing=str(self.weighing or ""),
            moves=self.moves,
            evaluated=self.evaluated,
        )


ZERO = GateResult(False, "could not be checked: the gradient is zero on this batch", checked=False)


def judged_as_precision(compared: str, cosine: float, error: float) -> GateResult:
    """Returns a verdict on two sides that may differ by the rounding of another precision.

    Args:
        compared: what was compared, in a word.
        cosine: the cosine of both sides.
        error: the L2 norm of their difference, relative to that of the baseline.
    """
    numbers = (
        f"cosine of the {compared} {cosine:.5f} (at least {PRECISION_COSINE}), relative L2 {error:.1e} "
        f"(at most {PRECISION_L2})"
    )
    return GateResult(cosine >= PRECISION_COSINE and error <= PRECISION_L2, numbers)
