"""Nested batch structures: every container keeps its type."""

import gc
import sys
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.sources import source_of
from autofit.workloads.tree import live_tensors, map_tensors, tensors
from tests.workloads.structures import STRUCTURES, rows


@pytest.mark.parametrize("name", STRUCTURES)
def test_map_tensors_keeps_every_type_and_the_original(name: str) -> None:
    batch = STRUCTURES[name]
    before = [tensor.clone() for tensor in tensors(batch)]
    mapped = map_tensors(batch, lambda tensor: tensor + 1)
    assert type(mapped) is type(batch)
    assert before
    for old, kept, new in zip(before, tensors(batch), tensors(mapped), strict=True):
        assert torch.equal(old, kept)
        assert torch.equal(new, old + 1)


def test_non_tensors_are_the_same_objects_and_containers_are_new() -> None:
    marker = object()
    batch: dict[str, Any] = {"x": rows(), "marker": marker, "inner": {"y": rows()}, "l": [1]}
    mapped = map_tensors(batch, lambda tensor: tensor)
    assert mapped["marker"] is marker
    mapped["inner"].pop("y")
    mapped["l"].append(2)
    assert "y" in batch["inner"]
    assert batch["l"] == [1]


def test_state_beside_the_data_of_a_mapping_is_kept() -> None:
    batch = STRUCTURES["encoding"]
    assert map_tensors(batch, torch.clone).encodings == "kept"
    assert map_tensors(STRUCTURES["defaultdict"], torch.clone).default_factory is list


def test_a_batch_that_holds_itself_is_refused() -> None:
    @dataclass
    class Node:
        x: torch.Tensor
        owner: Any = None

    batch = Node(torch.zeros(4, 2))
    batch.owner = {"nodes": [batch]}
    with pytest.raises(WorkloadError, match=r"a batch of type Node that contains itself.*remove the reference"):
        source_of([batch])
    with pytest.raises(WorkloadError, match="contains itself"):
        source_of(DataLoader([1, 2], batch_size=2, collate_fn=lambda samples: batch))  # type: ignore[arg-type]  # a list is a data set


def test_live_tensors_are_found_while_other_threads_make_tuples() -> None:
    """A tuple that grows while another object refers to it fails."""
    over, failed = Event(), list[Exception]()

    def make() -> None:
        try:
            while not over.is_set():
                assert len(tuple(each for each in range(30))) == 30
        except Exception as error:  # it is looked at below
            failed.append(error)

    threads, before, kept = [Thread(target=make) for _ in range(3)], sys.getswitchinterval(), torch.ones(3)
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(30):
            assert any(each is kept for each in live_tensors())
    finally:
        sys.setswitchinterval(before)
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_live_tensors_are_all_that_garbage_collection_tracks() -> None:
    class Own(torch.Tensor):
        pass

    kept = [torch.ones(2), nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Own), torch.ones(2).t_()]
    every = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    assert {id(each) for each in live_tensors()} == {id(each) for each in every} >= {id(each) for each in kept}
