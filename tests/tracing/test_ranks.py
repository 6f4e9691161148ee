"""Ranks without peers, and what a recorder sees of their sharded steps."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from autofit.core.errors import UsageError
from autofit.memory.trace import Kind
from autofit.torch_internals import RESULT_PROPAGATION, result_propagator
from autofit.tracing.data_dependent import DataAnswers
from autofit.tracing.ranks import GATHERS, fake_ranks, recording_shards
from autofit.tracing.recorder import Recorder


def test_a_rank_has_its_number_and_no_peers() -> None:
    known = dict(distributed.Backend.backend_capability)
    for number in (0, 3):
        with fake_ranks(4, number) as ranks:
            assert (ranks.count, ranks.number, ranks.is_fake) == (4, number, True)
            value = torch.full((2,), 7.0)
            distributed.all_reduce(value, group=ranks.group)  # returns at once
            assert ranks.mesh.size() == 4
        assert not distributed.is_initialized()
    assert known == distributed.Backend.backend_capability


def test_tensors_are_gathered_into_memory_of_any_shape_with_copies_of_the_own_one() -> None:
    name = next(each for each in reversed(GATHERS) if hasattr(distributed, each))  # the newest, as SyncBatchNorm does
    gather = getattr(distributed, name)
    with fake_ranks(2):
        found = torch.zeros(1, 6)
        getattr(distributed, name)(found, torch.tensor([1.0, 2.0, 3.0]))
        assert found.tolist() == [[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]]
    assert getattr(distributed, name) is gather


def test_a_process_that_belongs_to_a_group_is_refused() -> None:
    with fake_ranks(2), pytest.raises(UsageError, match="found a process group in this process"), fake_ranks(2):
        pass
    assert not distributed.is_initialized()


def test_the_group_ends_with_an_error() -> None:
    with pytest.raises(KeyError), fake_ranks(2):
        raise KeyError
    assert not distributed.is_initialized()


def recorded() -> Recorder:
    """Returns the recorder of one step of a sharded layer of 64 x 64 weights on two ranks."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    recorder = Recorder("cpu", DataAnswers())
    with fake_ranks(2) as ranks:
        for layer in model:
            fully_shard(layer, mesh=ranks.mesh)
        fully_shard(model, mesh=ranks.mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        with recording_shards(recorder, "cpu"), recorder:
            for _ in range(2):
                recorder.begin()
                recorder.label(model.parameters(), Kind.PARAMETER)
                model(torch.randn(1, 64)).sum().backward()
                recorder.label((p.grad for p in model.parameters() if p.grad is not None), Kind.GRADIENT)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return recorder


def test_gathered_weights_are_allocated_and_released() -> None:
    recorder = recorded()
    whole, part = 64 * 64 * 4, 32 * 64 * 4
    gathered = [handle for handle in recorder.events if handle >= 0 and recorder.sizes[handle] == whole]
    assert len([handle for handle in gathered if recorder.kinds[handle] is Kind.PARAMETER]) >= 2
    live = most = 0
    for event in recorder.events:
        live += recorder.sizes[event] if event >= 0 else -recorder.sizes[~event]
        most = max(most, live)
    assert most >= whole
    assert abs(live) < part  # what was gathered is released at the end of the step
    made = [handle for handle in recorder.events if handle >= 0]
    assert [recorder.sizes[each] for each in made if recorder.kinds[each] is Kind.GRADIENT] == [part, part]


def test_recording_is_undone() -> None:
    owner, resize = result_propagator(), torch.UntypedStorage.resize_
    method, recorder = getattr(owner, RESULT_PROPAGATION), Recorder("cpu", DataAnswers())
    with recording_shards(recorder, "cpu"):
        assert recorder.wrappers
        assert torch.UntypedStorage.resize_ is not resize
    assert torch.UntypedStorage.resize_ is resize
    assert getattr(owner, RESULT_PROPAGATION) is method
    assert recorder.wrappers == ()


def test_what_happened_before_the_beginning_is_forgotten() -> None:
    recorder = Recorder("cpu", DataAnswers())
    with recorder:
        kept = torch.empty(100)
        dropped = torch.empty(200)
        del dropped
        recorder.begin()
        assert [recorder.sizes[handle] for handle in recorder.initial] == [kept.nbytes]
        assert recorder.events == []
        assert [recorder.kinds[handle] for handle in recorder.initial] == [Kind.BUFFER]
        del kept
    assert recorder.events == [~recorder.initial[0]]


def test_only_known_storages_are_followed_when_they_are_resized() -> None:
    recorder, unknown = Recorder("cpu", DataAnswers()), torch.empty(10)
    with recording_shards(recorder, "cpu"):
        with recorder:
            known = torch.empty(10)
        unknown.untyped_storage().resize_(0)
        known.untyped_storage().resize_(0)
        known.untyped_storage().resize_(80)
        del known
    sizes = [recorder.sizes[event] if event >= 0 else -recorder.sizes[~event] for event in recorder.events]
    assert sizes == [40, -40, 0, 0, 80, -80]
