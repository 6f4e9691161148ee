"""Short runs: the law of a combination that cannot be traced, from a few short real runs at small micro batches.

Each run costs device time. The baseline's combination is recorded at three sizes; another one at two, and only if a run
is quick. A record shows what really ran, but only at small sizes: at larger ones a step may run other operators.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, Untraceable
from autofit.core.plan import MICRO_BATCH_SIZE, Plan
from autofit.memory.alignment import Mismatch
from autofit.memory.scaling import LEAST_TRACES, Scaling, scaling
from autofit.memory.trace import Trace

MIN_RUNS = 2
"""Number of runs that give a law; one more run checks it."""
QUICK_S = 1.0
"""Maximum seconds of a run for combinations other than the baseline's to be recorded too."""
ROUNDED_RATIO = 0.02
"""Tolerated deviation from a law. Libraries round allocations up to whole pages, which matters at small sizes: oneDNN's
LSTM deviates by 0.7 %."""
REACH = 16
"""Largest size for which a law has bounds, as a multiple of the largest size that ran."""

Run = Callable[[int], Trace]
"""Records a combination at a micro batch; raises `Untraceable` if that is impossible."""


class Records:
    """Makes the short runs of a search.

    Args:
        allowance_s: seconds that all runs together may take; None for no limit.

    Attributes:
        reason: reason why the baseline's combination has no law, or "".
    """

    def __init__(self, allowance_s: float | None = None) -> None:
        self._left_s = float("inf") if allowance_s is None else allowance_s
        self._run_s = 0.0
        self._first: Scaling | None = None
        self.reason = ""

    def first(self, run: Run, sizes: Sequence[int]) -> Scaling | None:
        """Returns the law of the baseline's combination, from as many of `sizes` as the time allows."""
        if len(sizes) < MIN_RUNS:
            self.reason = "there are no two small batches to run"
            return None
        self._first = self._law(run, sizes)
        return self._first

    def another(self, run: Run, sizes: Sequence[int]) -> Scaling | None:
        """Returns the law of another combination, if two runs of it are quick."""
        if self._first is None or self._run_s > QUICK_S or self._left_s <= 0:
            return None
        return self._law(run, sizes[:MIN_RUNS])

    def _law(self, run: Run, sizes: Sequence[int]) -> Scaling | None:
        traces: list[Trace] = []
        try:
            for size in sizes:
                if len(traces) < MIN_RUNS or self._left_s > 0:
                    traces.append(self._timed(run, size))
            law = self._scaled(traces)
            if isinstance(law, Mismatch) and self._left_s > 0:
                # A first run makes what later runs reuse, such as a table of a library, so it is repeated.
                law = self._scaled([self._timed(run, sizes[0]), *traces[1:]])
        except Untraceable as error:
            law = Mismatch(f"{error.reason} ({error.where})")
        except (DevicePoisoned, RestoreError):
            raise
        except AutofitError as error:  # a probe will show the error in the user's code
            law = Mismatch(str(error))
        if isinstance(law, Scaling):
            return law
        self.reason = self.reason if self._first else law.reason
        return None

    def _scaled(self, traces: Sequence[Trace]) -> Scaling | Mismatch:
        return scaling(traces, least=MIN_RUNS, slack_ratio=ROUNDED_RATIO)

    def _timed(self, run: Run, size: int) -> Trace:
        began = perf_counter()
        try:
            return run(size)
        finally:
            took = perf_counter() - began
            self._left_s -= took
            self._run_s = took  # the last run counts, because the first also loads libraries


class ShortRuns:
    """Gives traces of any micro batch from short real runs at small ones, for a workload that cannot be traced.

    Args:
        record: runs a few steps of a plan and returns their allocations.
        sizes: micro batches to run.
    """

    def __init__(self, record: Callable[[Plan], Trace], sizes: Sequence[int]) -> None:
        self._record, self._sizes = record, sizes
        self._laws: dict[tuple[str, bool], Scaling | Mismatch] = {}

    def __call__(self, plan: Plan) -> Trace:
        """Returns the trace of a plan, scaled from its combination's short runs.

        Raises:
            Untraceable: the runs failed, or their allocations follow no law.
        """
        key = plan.combination.key, plan.accumulation_steps > 1
        if key not in self._laws:
            records = Records()
            law = records.first(lambda size: self._record(plan.replace(**{MICRO_BATCH_SIZE: size})), self._sizes)
            self._laws[key] = law or Mismatch(records.reason)
        known = self._laws[key]
        found = known if isinstance(known, Mismatch) else known.at(plan.micro_batch_size)
        if isinstance(found, Mismatch):
            raise Untraceable(found.reason, "in short runs")
        return found

    @property
    def reach(self) -> int:
        """The largest micro batch for which the law has bounds."""
        return REACH * max(self._sizes, default=0)


def listed(sizes: Sequence[int]) -> str:
    """Returns sizes in words: "2, 4 and 8"."""
    return " and ".join(filter(None, (", ".join(map(str, sizes[:-1])), str(sizes[-1]))))


def small_sizes(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Returns the three micro batches to record, the smallest of `sizes` up to `most`; fewer if there are not enough.

    A single sample is the last resort, because operators omit copies where a dimension has one entry.
    """
    if len(sizes) < MIN_RUNS:
        return ()
    for found in ([s for s in sizes if 2 <= s <= most], range(2, most + 1)):
        if len(found) >= LEAST_TRACES:
            return tuple(found[:LEAST_TRACES])
    return tuple(range(min(2, most - 1), most + 1)) if most > 1 else ()
