"""Trial rows: finished trials as rows of a table that fit the width of a terminal.

A plan that does not fit beside the figures continues on further lines, so that rows differ if their plans do. Only a
reason is cut.
"""

from collections.abc import Sequence

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import one_line
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.terminal import cells, cut, paint, wrapped
from autofit.trackers.yardstick import Yardstick

_FIGURES = (("ratio", 6), ("speed", 9), ("peak", 10))
"""Columns before the plan, and their cells."""
_LAYOUTS = ((72, ("ratio", "speed", "peak")), (52, ("ratio", "peak")), (0, ("ratio",)))
"""Columns shown from this width on."""
_NAME_CELLS = 5
_LEAST_PLAN, _INDENT = 34, 4
"""Minimum number of cells for the further lines of a plan to stand below its first one, and their indent if there are
fewer. The longest knob with its value has 32 letters."""

Part = tuple[str, str]
"""A text and its colour; "" for none."""


class TrialRows:
    """Makes the rows of a search; one object per search.

    Args:
        against: what progress is compared with.
        colour: whether colours may be used.
    """

    def __init__(self, against: Yardstick, colour: bool = False) -> None:
        self._against, self._colour = against, colour
        self._shown: tuple[str, ...] = ()

    def lines(self, trial: Trial, name: str, ratio: float | None, is_best: bool, width: int) -> list[str]:
        """Returns the row of a trial, below the head of the table if that is new or has other columns now.

        Args:
            trial: a finished trial.
            name: its number, or "proof".
            ratio: throughput over the baseline; None if it is unknown.
            is_best: whether it is the fastest so far.
            width: cells of a line.
        """
        layout = next(columns for least, columns in _LAYOUTS if width >= least)
        head = [] if layout == self._shown else [cut(self._head(layout), width)]
        self._shown = layout
        figures, plan, reason = self._row(trial, name, ratio, is_best, layout)
        return [*head, *self._fitted(figures, plan, reason, width)]

    def _head(self, layout: Sequence[str]) -> str:
        titles = {"ratio": "ratio", "speed": f"{self._against.objective.unit}/s", "peak": "peak"}
        figures = "".join(f"  {titles[name]:>{size}}" for name, size in _FIGURES if name in layout)
        return f"{'':{_NAME_CELLS}}{figures}  micro batch x accumulation steps, changes"

    def _row(
        self, trial: Trial, name: str, ratio: float | None, is_best: bool, layout: Sequence[str]
    ) -> tuple[list[Part], str, str]:
        """Returns the figures of a row, its plan, and the reason why it has no figures."""
        outcome, measurement = trial.outcome, trial.outcome.measurement
        plan = short_plan(trial.plan, self._against.baseline)
        begin = (f"{name:>{_NAME_CELLS}}", "")
        if not outcome.measured or measurement is None:
            room = sum(size + 2 for column, size in _FIGURES if column in layout)
            status = f"{f'  {outcome.status.value}':>{room}}"
            return [begin, (status, "bad")], plan, one_line(outcome.reason)
        speed = short_number(self._against.objective.score(measurement)) if name != "proof" else ""
        if "speed" not in layout and ratio is None:
            shown = {"ratio": speed or "proven"}
        else:
            shown = {"ratio": "" if ratio is None else format_ratio(ratio), "speed": speed or "proven"}
        shown["peak"] = format_bytes(measurement.memory.judged_bytes)
        figures = [
            (f"  {shown[column]:>{size}}", "good" if is_best and column == "ratio" and ratio else "")
            for column, size in _FIGURES
            if column in layout
        ]
        return [begin, *figures], plan, ""

    def _fitted(self, figures: Sequence[Part], plan: str, reason: str, width: int) -> list[str]:
        """Returns a row as lines of the width, which are coloured after they are made."""
        begin = "".join(text for text, _ in figures)
        column = cells(begin) + 2
        rest = " " * (column if width - column >= _LEAST_PLAN else _INDENT)
        lines = wrapped(plan + ":" * bool(reason), width, f"{begin}  ", rest)
        if reason:
            lines[-1] = f"{lines[-1]} {reason}"
        first, *others = [cut(line, width) for line in lines]
        found, at = "", 0
        for text, colour in figures:
            found += paint(first[at : at + len(text)], colour if self._colour else "")
            at += len(text)
        return [found + first[at:], *others]


def short_plan(plan: Plan, baseline: Plan | None) -> str:
    """Returns the batch of `plan` and the knobs that differ from `baseline`, in few words on one line."""
    if plan == baseline:
        return "baseline"
    batch = f"{plan.micro_batch_size} x {plan.accumulation_steps}"
    changed = {} if baseline is None else plan.changes_from(baseline)
    changes = [f"{k}={v}" for k, v in changed.items() if k not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)]
    return one_line(", ".join([batch, *changes]))
