"""What a loader gives a training, by its number of workers."""

import pytest

from autofit.core.loading import Loading, LoadingTrial

ALONE, TWO = LoadingTrial(workers=0, samples_per_s=500.0), LoadingTrial(workers=2, samples_per_s=1400.0)
LOADING = Loading(needed_per_s=1000.0, trials=(ALONE, TWO), workers=2, prefetch_factor=2)


def test_without_workers_steps_and_loading_take_turns_and_with_them_the_slower_decides() -> None:
    assert LOADING.training_per_s(ALONE) == pytest.approx(1 / (1 / 500 + 1 / 1000))
    assert LOADING.training_per_s(TWO) == 1000.0
    assert LOADING.training_per_s(LoadingTrial(workers=4, samples_per_s=700.0)) == 700.0
    assert LOADING.training_per_s(LoadingTrial(workers=4, reason="it crashed")) == 0.0


def test_the_speed_of_the_loader_is_that_with_the_chosen_workers() -> None:
    assert LOADING.samples_per_s == 1400.0
    assert LOADING.model_copy(update={"workers": 4}).samples_per_s is None
