"""What the user should know about the loader: whether it keeps up with the plan, and with how many worker processes."""

import math
from collections.abc import Iterator

from autofit.core.loading import Loading
from autofit.core.measurement import Measurement
from autofit.core.units import format_duration, short_number

_FELT_RATIO = 0.1
"""Smallest share of a step's time that is worth a caveat, if loading takes it in the training's process."""


def loading_caveats(proof: Measurement) -> Iterator[str]:
    """Yields the caveat about the loader of a proven plan, if there is one."""
    fetch_s, step_s = proof.fetch_s, proof.step_time_s
    if proof.loading is not None:
        if not proof.loading.kept:
            yield _chosen(proof.loading)
        elif fetch_s is not None and fetch_s > step_s * (proof.loading.workers or _FELT_RATIO):
            yield _kept(proof.loading)
    elif fetch_s is not None and fetch_s > _FELT_RATIO * step_s:
        workers = _workers(math.ceil(fetch_s / step_s))
        yield (
            f"loading the samples of one step took {format_duration(fetch_s)}, and its training "
            f"{format_duration(step_s)}: give the loader about {workers}, or it will limit training"
        )


def _chosen(loading: Loading) -> str:
    """Returns the numbers of a loader whose settings were chosen."""
    needed, rate = short_number(loading.needed_per_s), short_number(loading.samples_per_s or 0.0)
    alone = short_number(loading.trials[0].samples_per_s or 0.0)
    if not loading.workers:
        return (
            f"the loader needs no worker processes: it makes {alone} samples/s, and the step could take {needed}. "
            "fit.prepare builds it so"
        )
    if (loading.samples_per_s or 0.0) >= loading.needed_per_s:
        return (
            f"the loader keeps up with {_workers(loading.workers)}: it yields {rate} samples/s (without them {alone}), "
            f"and the step could take {needed}. fit.prepare builds it so"
        )
    last = loading.trials[-1]
    further = last.reason or f"{short_number(last.samples_per_s or 0.0)} samples/s"
    more = f" ({_workers(last.workers)}: {further})" if last.workers != loading.workers else ""
    workers = f"{_workers(loading.workers)}{more}"
    return (
        f"data-bound: the loader yields {rate} samples/s with {workers}, and the step could take {needed}. "
        "fit.prepare builds it so; make loading a sample cheaper to train faster"
    )


def _kept(loading: Loading) -> str:
    """Returns the numbers of a loader that keeps its settings, and why."""
    alone, needed = short_number(loading.trials[0].samples_per_s or 0.0), short_number(loading.needed_per_s)
    return (
        f"one process makes {alone} samples/s of the loader, and the step could take {needed}. The loader keeps its "
        f"settings, since {loading.kept}"
    )


def _workers(count: int) -> str:
    return f"{count} worker process{'' if count == 1 else 'es'}"
