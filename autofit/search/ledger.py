"""Ledger: what each kind of action has cost on this machine, and what it will cost.

An action that would not end in the time left is not begun. No part of the budget is set aside: a plan is proven in the
run of its probe, so what is known is the answer at any moment.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from autofit.core.budget import Clock
from autofit.core.measurement import Measurement
from autofit.core.outcome import Outcome
from autofit.search.request import Tuning

BLOCK_STEPS, PROOF_STEPS = 5, 10
"""Number of steps, warm-up included, in a block of a race and in a proof of its own."""
EXAMINED_STEPS, EXAMINED_RATIO, EXAMINED_S = 5, 8.0, 2.0
"""Number of steps of an examination of the answer, how many times as long as a step each takes at most, and the seconds
for what follows them (reference/doctor.md, section 0)."""
UNCOMPILED_RATIO = 5.0
"""A compiled step is examined uncompiled, and takes at most this many times as long: the largest plausible speed-up of
compilation (`strategies.compilation.CEILING`)."""
RUNAWAY_RATIO, RUNAWAY_S = 5.0, 20.0
"""A probe is ended when it takes this many times as long as expected, and this many seconds longer."""


class Ledger:
    """The costs of the actions of one search, and the time left.

    What was not done yet is charged at the cost of a probe.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._probes_s: list[float] = []
        self._fixed_s: list[float] = []
        self._checks_s: list[float] = []

    def probed(self, took_s: float, outcome: Outcome) -> None:
        """Records the duration of a probe, without a warm-up that later runs of the plan do not have."""
        measured = outcome.measurement
        startup_s = (measured.startup_s or 0.0) if measured is not None else 0.0
        self._probes_s.append(max(took_s - startup_s, 0.0))
        if measured is not None:
            self._fixed_s.append(max(took_s - startup_s - measured.all_steps * measured.step_time_s, 0.0))

    def checked(self, took_s: float) -> None:
        """Records the duration of a check."""
        self._checks_s.append(took_s)

    def left_s(self) -> float:
        """Returns the seconds left of the time budget; infinity without one."""
        limit = self._tuning.budget.time_s
        return math.inf if limit is None else limit - self._tuning.clock.elapsed_s

    def probe_s(self) -> float:
        """Returns the median duration of a probe without its warm-up, in seconds; 0 before the first."""
        return median(self._probes_s) if self._probes_s else 0.0

    def check_s(self) -> float:
        """Returns the seconds of a check: the longest so far; 0 before the first, which is tried at any time."""
        return max(self._checks_s, default=0.0)

    def block_s(self, measurement: Measurement) -> float:
        """Returns the seconds of a block of a race: its steps, and what any run costs beside them."""
        return self._beside_s() + BLOCK_STEPS * measurement.step_time_s

    def proof_s(self, measurement: Measurement) -> float:
        """Returns the seconds of a proof in a run of its own, with the start of its process if it has one."""
        return self._tuning.proof_start_s + self._beside_s() + PROOF_STEPS * measurement.step_time_s

    def examination_s(self, measurement: Measurement) -> float:
        """Returns the seconds that an examination of a plan's steps takes at most."""
        ratio = EXAMINED_RATIO if measurement.compile_s is None else EXAMINED_RATIO * UNCOMPILED_RATIO
        return EXAMINED_STEPS * ratio * measurement.step_time_s + EXAMINED_S

    def limit_s(self, expected_s: float | None) -> float | None:
        """Returns the seconds after which a probe is ended that was expected to take `expected_s`; None: never."""
        left_s = self.left_s()
        if expected_s is not None:
            left_s = min(left_s, RUNAWAY_RATIO * expected_s + RUNAWAY_S)
        return None if math.isinf(left_s) else max(left_s, 0.1)

    def _beside_s(self) -> float:
        """Returns the seconds that a run takes beside its steps."""
        return median(self._fixed_s) if self._fixed_s else self.probe_s()


@contextmanager
def extended(clock: Clock, by_s: float) -> Iterator[None]:
    """Adds the time that is spent inside, up to `by_s` seconds, to the time budget of a clock."""
    before_s, began_s = clock.limit_s, clock.elapsed_s
    if before_s is not None:
        clock.limit_s = max(before_s, began_s) + by_s
    try:
        yield
    finally:
        clock.limit_s = None if before_s is None else before_s + min(clock.elapsed_s - began_s, by_s)
