"""What can only be iterated is read from a second iterator, and everything is put back."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from autofit.core.errors import WorkloadError
from autofit.workloads.sources import source_of
from autofit.workloads.streams import undisturbed
from tests.workloads.loaders import Batches, SizedStream, Stream, labels, shuffling, use_all


@pytest.mark.parametrize(("kind", "length"), [(Stream, 1000), (SizedStream, 1000), (Stream, 20)])
def test_iterable_data_set_is_read_from_its_own_iterator(kind: type[Stream], length: int) -> None:
    data = kind(length)
    loader = DataLoader(data, batch_size=4)
    in_flight = iter(loader)
    first = next(in_flight)
    source = source_of(loader)
    use_all(source)
    read = min(length, 512)
    assert source.notes[0].startswith(f"{read} samples were read from a second iterator")
    assert ("worst_case" in source.notes[0]) == (length > 512)
    assert source.length == (None if length == 1000 and kind is Stream else length)
    assert source.typical(7, 1)[0].shape == (7, 1)
    assert first.flatten().tolist() == [0, 1, 2, 3]
    assert next(in_flight).flatten().tolist() == [4, 5, 6, 7]
    assert data.epochs == 1  # the loader's own iterator; the second one was put back
    again = source.rebuild(5)
    assert isinstance(again, DataLoader)
    assert next(iter(again)).shape == (5, 1)


def test_endless_iterable_data_set() -> None:
    class Endless(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                yield torch.zeros(2)

    source = source_of(DataLoader(Endless(), batch_size=4))
    assert source.length is None
    assert source.typical(600, 1)[0].shape == (600, 2)


class OneShot(IterableDataset[torch.Tensor]):
    def __init__(self, items: Iterator[torch.Tensor]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from self.items


class Itself(IterableDataset[torch.Tensor]):
    def __iter__(self) -> "Itself":
        return self

    def __next__(self) -> torch.Tensor:
        return torch.zeros(2)


def test_what_can_be_iterated_once_is_refused_and_not_consumed() -> None:
    items = (torch.full((1,), float(at)) for at in range(6))
    batches = (torch.zeros(4, 2) for _ in range(3))
    loader = shuffling()
    half_used = iter(loader)
    next(half_used)
    for one_shot in (DataLoader(OneShot(items), batch_size=2), DataLoader(Itself()), batches, half_used):
        with pytest.raises(WorkloadError, match="can be iterated only once"):
            source_of(one_shot)
    assert next(items).item() == 0.0
    assert len(list(batches)) == 3
    assert len(list(half_used)) == 2


def test_any_re_iterable_is_read_through_a_second_iterator_and_put_back() -> None:
    used, untouched = Batches(shuffling()), Batches(shuffling())
    source = source_of(used)
    use_all(source)
    assert used.passes == 0
    assert (source.user_batch_size, source.length) == (4, 10)
    assert source.notes == ("3 batches were read from a second iterator",)
    assert labels(used) == labels(untouched)


def test_batches_of_numpy_random_state_are_put_back() -> None:
    numpy = pytest.importorskip("numpy")

    class Random:
        def __init__(self) -> None:
            self.new, self.old = numpy.random.default_rng(1), numpy.random.RandomState(1)

        def __iter__(self) -> Iterator[torch.Tensor]:
            for _ in range(2):
                yield torch.tensor([self.new.random(), self.old.rand()])

    used = Random()
    source_of(used)
    assert [batch.tolist() for batch in used] == [batch.tolist() for batch in Random()]


def test_an_object_with_the_systems_random_numbers_is_left_as_it_is() -> None:
    with undisturbed([random.SystemRandom()]):
        pass


def test_looking_at_a_source_puts_the_global_random_numbers_back() -> None:
    numpy = pytest.importorskip("numpy")

    def drawn() -> list[float]:
        return [torch.rand(1).item(), random.random(), numpy.random.rand()]

    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    with undisturbed(object()):
        first = drawn()
    assert drawn() == first


class AttributeDict(dict[str, Any]):
    """Says KeyError, not AttributeError, of what it has not."""

    __getattr__ = dict.__getitem__


class Missing:
    """Stands for a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(f"install it for {name}")


class Config(IterableDataset[torch.Tensor]):
    def __init__(self, held: object) -> None:
        self.held = held

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(20.0).view(20, 1)


@pytest.mark.parametrize("held", [AttributeDict(lr=1), Missing(), [Missing()]], ids=["dict", "missing", "list"])
def test_objects_that_fail_when_asked_for_an_attribute_do_no_harm(held: object) -> None:
    use_all(source_of(DataLoader(Config(held), batch_size=4)))
    data: Any = [AttributeDict(x=torch.zeros(2), y=at) for at in range(8)]
    use_all(source_of(DataLoader(data, batch_size=4)))
    Sampler: Any = type(
        "Sampler", (), {"__init__": lambda self: setattr(self, "held", held), "__len__": lambda self: 2}
    )
    Sampler.__iter__ = lambda self: iter([[0, 1], [2, 3]])
    rows: Any = list(torch.zeros(4, 2))
    source = source_of(DataLoader(rows, batch_sampler=Sampler()))
    assert [len(batch) for batch in source.rebuild(1)] == [1, 1, 1, 1]


def test_a_stream_may_hold_a_log_that_it_writes_but_not_a_file_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as log:
        assert source_of(DataLoader(Config(log), batch_size=4)).length == 20
    assert source_of(DataLoader(Config(log), batch_size=4)).length == 20
    with path.open() as data, pytest.raises(WorkloadError, match=r"holds an iterator in \.held"):
        source_of(DataLoader(Config(data), batch_size=4))
