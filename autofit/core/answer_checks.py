"""Checks of an answer from a file beyond its types, so that it can be shown and used in computations."""

import math
import reprlib
from collections.abc import Iterator

from autofit.core.answer import Answer, Candidate
from autofit.core.measurement import Measurement
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE

MOST_SAMPLES = 2**31
"""Maximum micro batch size and number of accumulation steps."""


def problems(answer: Answer) -> Iterator[str]:
    """Yields values that a search cannot have produced, as "place: found ...; expected ..."."""
    r = answer
    candidates = {"baseline": r.baseline} | {f"alternatives.{n}": c for n, c in enumerate(r.alternatives)}
    yield from _batches(r, candidates)
    for place, measurement in _measurements(r, candidates).items():
        positive = min(measurement.step_times_s) > 0
        yield from _times(place, measurement, r.objective.score(measurement) if positive else 0.0)
    for place, ratio in {"gain": r.gain, **{f"{place}.gain": c.gain for place, c in candidates.items()}}.items():
        if ratio is not None and not 0 < ratio.low <= ratio.value <= ratio.high < math.inf:
            yield f"{place}: found {ratio.value:g} ({ratio.low:g} to {ratio.high:g}); expected 0 < low <= value <= high"
    if not 0 <= r.duration_s < math.inf:
        yield f"duration_s: found {r.duration_s}; expected seconds"
    if r.evaluation is not None:
        yield from (f"evaluation.{problem}" for problem in problems(r.evaluation))


def _batches(r: Answer, candidates: dict[str, Candidate]) -> Iterator[str]:
    """Checks the knobs that `Plan` uses. Other knobs are checked by the strategies that own them."""
    for place, plan in {"plan": r.plan, **{f"{place}.plan": c.plan for place, c in candidates.items()}}.items():
        for knob in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS):
            value = plan.values.get(knob, 1 if knob == ACCUMULATION_STEPS else None)
            if type(value) is not int or not 1 <= value <= MOST_SAMPLES:
                yield (
                    f"{place}.values: found {knob}: {reprlib.repr(value)}; expected an integer from 1 to {MOST_SAMPLES}"
                )


def _measurements(r: Answer, candidates: dict[str, Candidate]) -> dict[str, Measurement]:
    runs = {f"{place}.outcome.measurement": c.outcome.measurement for place, c in candidates.items()}
    return {"proof": r.proof} | {place: run for place, run in runs.items() if run is not None}


def _times(place: str, measurement: Measurement, per_s: float) -> Iterator[str]:
    if not 0 < per_s < math.inf:
        times = reprlib.repr(list(measurement.step_times_s))
        yield f"{place}: found step times of {times} s; expected seconds above 0 and a finite throughput"
    if not math.isfinite(measurement.startup_s or 0.0):
        yield f"{place}.startup_s: found {measurement.startup_s}; expected seconds"
