"""The caveat about the loader has the numbers, and what was done about them."""

from typing import Any

import pytest

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.measurement import Measurement, Memory
from autofit.search.explanations import loading_caveats

ALONE = LoadingTrial(workers=0, samples_per_s=410.0)


def told(loading: Loading | None, fetch_s: float | None = 0.05) -> str:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    proof = Measurement(step_times_s=(0.1,), samples_per_step=90, memory=memory, fetch_s=fetch_s, loading=loading)
    return " ".join(loading_caveats(proof))


def loading(*trials: tuple[int, float | None, str], **changes: Any) -> Loading:
    found = [LoadingTrial(workers=workers, samples_per_s=rate, reason=reason) for workers, rate, reason in trials]
    return Loading(needed_per_s=900.0, trials=(ALONE, *found), **changes)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            loading((1, 800.0, ""), (2, 1510.0, ""), workers=2, prefetch_factor=2),
            "the loader keeps up with 2 worker processes: it yields 1,510 samples/s (without them 410), and the step "
            "could take 900. fit.prepare builds it so",
        ),
        (
            loading((1, 610.0, ""), (2, 620.0, ""), workers=1, prefetch_factor=2),
            "data-bound: the loader yields 610 samples/s with 1 worker process (2 worker processes: 620 samples/s), "
            "and the step could take 900",
        ),
        (
            loading((1, 610.0, ""), (2, None, "it crashed"), workers=1, prefetch_factor=2),
            "data-bound: the loader yields 610 samples/s with 1 worker process (2 worker processes: it crashed)",
        ),
        (loading(), "the loader needs no worker processes: it makes 410 samples/s, and the step could take 900"),
        (
            loading(kept="OwnLoader overrides __iter__"),
            "loading the samples of one step took 50 ms, and its training 100 ms: the loader keeps its settings, since "
            "OwnLoader overrides __iter__",
        ),
    ],
    ids=["keeps up", "data-bound", "crashed", "none needed", "kept"],
)
def test_the_caveat_has_the_numbers(found: Loading, words: str) -> None:
    assert told(found).startswith(words)


def test_a_loader_that_keeps_its_workers_and_may_keep_up_with_them_is_not_named() -> None:
    assert told(loading(kept="so", workers=2)) == ""
    assert told(loading(kept="so", workers=2), fetch_s=0.3).startswith("loading the samples of one step took")
    assert told(loading(kept="so"), fetch_s=0.009) == ""


def test_a_loader_that_was_not_looked_at_is_named_by_the_time_of_its_batches() -> None:
    assert told(None, 0.25).endswith("give the loader about 3 worker processes, or it will limit training")
    assert told(None, 0.0099) == told(None, None) == ""
