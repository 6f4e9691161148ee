"""Verdicts of gates that a later search of the same workload may use, instead of running the gates again."""

from pydantic import BaseModel, ConfigDict


class GateVerdict(BaseModel):
    """What a gate found, as a study keeps it.

    Attributes:
        passed: whether the technique keeps the gradient.
        reason: what was compared, found and allowed.
        weighing: quantity by which micro batches must be weighted, as text; "" for their number of samples.
        moves: names of state that the step itself changes in each micro batch.
        evaluated: whether the comparison was made in evaluation mode.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    reason: str
    weighing: str = ""
    moves: tuple[str, ...] = ()
    evaluated: bool = False


class GateVerdicts(BaseModel):
    """The verdicts of the gates on a workload.

    Attributes:
        environment: digest of the workload's structure and code, its device and the versions, before any gate ran. The
            values of weights and data are not in it.
        found: verdict by technique: "accumulation", or a knob and its value such as "precision=bf16". Gates without a
            result are left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str
    found: dict[str, GateVerdict]
