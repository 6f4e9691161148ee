"""What a chaos run does in each of its runs, drawn from a seed. Needs no torch."""

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
"""Faults that end or hang a process, or leave one of its own behind."""
SIGNALS = ("", "", "", "SIGINT", "SIGTERM", "SIGINT twice", "SIGKILL")
COMMAND_SHARE = 0.25
"""Share of the runs by the command line: each takes several times as long as one in process."""
ALLOWED = {
    "none": {0}, "print": {0}, "slow": {0, 7}, "leak": {0}, "helper": {0}, "out_of_memory": {0, 3},
    "nan": {0, 5}, "hang": {0}, "wrong_shape": {0, 2, 5}, "error": {0, 5}, "interrupt": {0, 5}, "exit": {0, 5},
    "crash": {0, 5}, "segfault": {0, 5}, "kill": {0, 3, 5},
}  # fmt: skip
"""Exit codes by fault. 7, the time is over with no plan, may always be; 1, an internal error, never."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        number: of the run.
        by: "process" or "command".
        kind: of workload.
        fault: what strikes.
        place: where.
        nth: at which visit of it.
        lasting: whether also at each later one.
        signal: what the command gets meanwhile, or "".
        after_s: when.
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

    def told(self) -> str:
        """Returns the case in a line."""
        lasting = " and on" if self.lasting else ""
        sent = f", {self.signal} after {self.after_s:.1f} s" if self.signal else ""
        return f"#{self.number} by {self.by}: {self.kind}, {self.fault} at {self.place} visit {self.nth}{lasting}{sent}"

    def arguments(self) -> dict[str, Any]:
        """Returns what the factory of workloads takes."""
        return {k: v for k, v in asdict(self).items() if k in ("kind", "fault", "place", "nth", "lasting")}


def case(seed: int, number: int) -> Case:
    """Returns a run of a seed; the same each time, whatever other runs there are."""
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
