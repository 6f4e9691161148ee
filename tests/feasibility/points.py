"""Plans as numbers, from a list of plans."""

from collections.abc import Sequence

import numpy as np

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.feasibility.plan_features import Points, numbered, typed


def points_of(knobs: Sequence[Knob], plans: Sequence[Plan], baseline_size: int) -> Points:
    """Returns plans as numbers; `baseline_size` is the micro batch of the baseline."""
    places = [{typed(value): place for place, value in enumerate(knob.values)} for knob in knobs]
    rows = [tuple(at[typed(plan.values[k.name])] for at, k in zip(places, knobs, strict=True)) for plan in plans]
    numbers: dict[tuple[int, ...], int] = {}
    combinations = np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)
    each = np.array(list(numbers), dtype=np.int16).reshape(len(numbers), len(knobs))
    return numbered(each, combinations, np.array([plan.micro_batch_size for plan in plans]), baseline_size)
