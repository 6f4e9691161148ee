"""The arguments of a DataLoader that a choice of workers replaces, which a DataLoader must accept."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autofit.core.loading import Loading, LoadingTrial
from autofit.workloads.sources import loader_changes, source_of

DATA = TensorDataset(torch.arange(24.0))
LOADING = Loading(needed_per_s=10.0, trials=(LoadingTrial(workers=0, samples_per_s=5.0),))
TWO = LOADING.model_copy(update={"workers": 2, "prefetch_factor": 3, "persistent_workers": True})


def rebuilt(loader: DataLoader[Any], loading: Loading, size: int = 4, *, counted: bool = False) -> DataLoader[Any]:
    found = source_of(loader).rebuild(size, counted=counted, changes=loader_changes(loading))
    assert isinstance(found, DataLoader)
    return found


def test_a_loader_that_keeps_its_settings_is_the_users() -> None:
    assert loader_changes(None) == {}
    assert loader_changes(LOADING.model_copy(update={"kept": "no"})) == {}


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("size", [4, 6])
def test_the_chosen_workers_are_used_at_every_size(size: int, counted: bool) -> None:
    loader = DataLoader(DATA, batch_size=4, pin_memory=False)
    found = rebuilt(loader, TWO, size, counted=counted)
    assert found is not loader
    assert (found.num_workers, found.prefetch_factor, found.persistent_workers) == (2, 3, True)
    assert (found.batch_size, found.pin_memory) == (size, False)


def test_workers_are_taken_off_a_loader_with_settings_that_need_them() -> None:
    loader = DataLoader(
        DATA, batch_size=4, num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=5,
        multiprocessing_context="spawn",
    )  # fmt: skip
    found = rebuilt(loader, LOADING)
    assert (found.num_workers, found.prefetch_factor, found.persistent_workers) == (0, None, False)
    assert [len(batch[0]) for batch in found] == [4] * 6


def test_samples_come_in_the_same_order_with_any_number_of_workers() -> None:
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    orders = []
    for loading in (LOADING, TWO):
        torch.manual_seed(3)
        orders.append([batch[0].tolist() for batch in rebuilt(loader, loading)])
    assert orders[0] == orders[1]
    torch.manual_seed(3)
    assert [batch[0].tolist() for batch in loader] == orders[0]


class Streamed(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(24.0))


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Streamed(), batch_size=4), "each worker process would yield all of an iterable data set"),
        (OwnLoader(DATA, batch_size=4), "OwnLoader overrides __iter__"),
        (DataLoader(DATA, batch_size=4, num_workers=1, worker_init_fn=print), "its worker_init_fn prepares"),
        ([torch.zeros(4, 2)] * 3, "it yields ready batches"),
        (DataLoader(TensorDataset(torch.zeros(3, 4, 2)), batch_size=None), "it yields ready batches"),
    ],
)
def test_a_loader_that_others_cannot_make_again_keeps_its_workers(loader: Any, reason: str) -> None:
    source = source_of(loader)
    assert source.fixed_loading.startswith(reason)
    assert source.loader is loader
    assert source.rebuild(source.user_batch_size, changes=loader_changes(TWO)) is loader


def test_pinned_memory_is_replaced_only_where_it_was_chosen() -> None:
    assert "pin_memory" not in loader_changes(TWO)
    assert loader_changes(TWO.model_copy(update={"pin_memory": True}))["pin_memory"] is True
