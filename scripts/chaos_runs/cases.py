"""Cases of `scripts/chaos`, drawn from a seed. Does not need torch."""

import random
from dataclasses import asdict, dataclass
from typing import Any

KINDS = (
    "mlp", "tied", "frozen", "convolutional", "recurrent", "encoder", "teacher", "adversary", "noisy", "bags", "listed",
)  # fmt: skip
PLACES = ("data", "collate", "forward", "backward", "loss", "optimizer")
RAISED = ("error", "out_of_memory", "interrupt", "exit", "nan", "wrong_shape", "print", "slow", "leak", "none")
"""Faults that a process survives."""
ENDING = ("crash", "segfault", "kill", "hang", "helper")
"""Faults that end or hang a process, or leave a child process behind."""
SIGNALS = ("", "", "", "SIGINT", "SIGTERM", "SIGINT twice", "SIGKILL")
COMMAND_SHARE = 0.25
"""Share of the runs by the command line, which take several times as long as those in process."""
ALLOWED = {
    "none": {0}, "print": {0}, "slow": {0, 7}, "leak": {0}, "helper": {0}, "out_of_memory": {0, 3},
    "nan": {0, 5}, "hang": {0}, "wrong_shape": {0, 2, 5}, "error": {0, 5}, "interrupt": {0, 5}, "exit": {0, 5},
    "crash": {0, 5}, "segfault": {0, 5}, "kill": {0, 3, 5},
}  # fmt: skip
"""Allowed exit codes by fault. 7 (time budget spent without a plan) is always allowed, 1 (internal error) never."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        number: number of the run.
        by: "process" or "command".
        kind: kind of workload.
        fault: name of the fault.
        place: place at which it occurs.
        nth: visit of the place at which it occurs.
        lasting: whether it also occurs at each later visit.
        signal: signal that is sent to the command, or "".
        after_s: seconds until the signal is sent.
    """

    number: int
    by: str
    kind: str
    fault: str
    place: str
    nth: int
    lasting: bool
    signal: str = ""
    after_s: float = 0.0

    def description(self) -> str:
        """Returns the case as one line."""
        lasting = " and on" if self.lasting else ""
        sent = f", {self.signal} after {self.after_s:.1f} s" if self.signal else ""
        return f"#{self.number} by {self.by}: {self.kind}, {self.fault} at {self.place} visit {self.nth}{lasting}{sent}"

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for the factory of workloads."""
        return {k: v for k, v in asdict(self).items() if k in ("kind", "fault", "place", "nth", "lasting")}


def case(seed: int, number: int) -> Case:
    """Returns a run of a seed; it does not depend on other runs."""
    draw = random.Random(f"{seed}/{number}")
    by = "command" if draw.random() < COMMAND_SHARE else "process"
    fault = draw.choice(RAISED + ENDING if by == "command" else RAISED)
    return Case(
        number=number,
        by=by,
        kind=draw.choice(KINDS),
        fault=fault,
        place=draw.choice(PLACES),
        nth=draw.choice((1, 2, 3, 10, 40, 150)),
        lasting=draw.random() < 0.4,
        signal=draw.choice(SIGNALS) if by == "command" else "",
        after_s=round(draw.uniform(0.5, 12.0), 1),
    )
