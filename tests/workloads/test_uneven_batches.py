"""The batches of a sampler with a budget of frames, which hold as many samples as fit: they stay as they are."""

import itertools
import random
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

from autofit.core.briefing import Options
from autofit.core.errors import WorkloadError
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.fakes import notes
from tests.probing.steps import CPU, PLENTY

FRAMES = 240


class FrameBudget(Sampler[list[int]]):
    """Batches of samples of like length, with at most `FRAMES` frames with padding, in another order in each pass."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.chance = lengths, random.Random(7)

    def __iter__(self) -> Iterator[list[int]]:
        batches: list[list[int]] = [[]]
        for at in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if (len(batches[-1]) + 1) * self.lengths[at] > FRAMES:
                batches.append([])
            batches[-1].append(at)
        self.chance.shuffle(batches)
        yield from batches


def lengths_of(count: int = 400) -> list[int]:
    chance = random.Random(1)
    return [8 + int(80 * chance.random() ** 3) for _ in range(count)]


def loader_of(count: int = 400, **options: Any) -> DataLoader[Any]:
    lengths = lengths_of(count)
    data: Any = [torch.full((length, 2), float(at)) for at, length in enumerate(lengths)]
    return DataLoader(data, batch_sampler=FrameBudget(lengths), collate_fn=padded, **options)


def padded(rows: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def made(loader: DataLoader[Any]) -> list[tuple[int, int]]:
    """Returns the number of samples and the length of each batch of a pass."""
    return sorted((batch.shape[0], batch.shape[1]) for batch in loader)


def test_the_batches_are_those_of_the_sampler_and_like_its_average() -> None:
    source, users = source_of(loader_of()), made(loader_of())
    mean = fmean(samples for samples, _ in users)
    assert source.user_batch_size == round(mean)
    assert not source.resizable
    assert source.varies
    typical = source.typical(source.user_batch_size, 8)
    assert all(tuple(batch.shape[:2]) in users for batch in typical)
    assert fmean(len(batch) for batch in typical) == pytest.approx(mean, rel=0.1)
    filled = fmean(batch.shape[0] * batch.shape[1] for batch in typical)
    assert filled == pytest.approx(fmean(samples * length for samples, length in users), rel=0.05)
    assert len(source.typical(source.user_batch_size, 300)) == 300
    fresh = [tuple(each.shape[:2]) for each in itertools.islice(source.fresh(source.user_batch_size, 1), 40)]
    assert set(fresh) <= set(users)
    assert len(set(fresh)) > 8


def test_the_worst_batch_is_one_that_the_sampler_makes() -> None:
    source, users = source_of(loader_of()), made(loader_of())
    worst = tuple(source.worst(source.user_batch_size).shape[:2])
    assert worst in users
    most = max(samples * length for samples, length in users)
    assert worst[0] * worst[1] >= 0.95 * most
    assert worst[1] == max(length for samples, length in users if samples * length >= 0.95 * most)


def test_no_other_size_can_be_made() -> None:
    source = source_of(loader_of())
    with pytest.raises(WorkloadError, match="can be neither cut nor joined"):
        source.typical(source.user_batch_size + 1, 1)


def test_training_gets_the_users_own_batches() -> None:
    loader = loader_of()
    source = source_of(loader)
    size = source.user_batch_size
    assert source.rebuild(size) is loader
    counted: Any = source.rebuild(size, counted=True)
    assert sorted((len(each.batch), each.batch.shape[1]) for each in counted) == made(loader_of())
    assert {each.samples for each in source.rebuild(size, counted=True)} == {size}
    other: Any = source.rebuild(size, changes={"num_workers": 1})
    assert other.num_workers == 1
    assert made(other) == made(loader_of())


def test_the_sampler_is_not_advanced() -> None:
    used, unused = loader_of(), loader_of()
    source = source_of(used)
    source.typical(source.user_batch_size, 4)
    assert [batch.shape for batch in used] == [batch.shape for batch in unused]


def test_of_many_samples_some_batches_are_inspected() -> None:
    source = source_of(loader_of(), scan=100)
    assert any("batches were inspected: if a larger one can occur" in note for note in source.notes)


def test_the_baseline_is_the_users_training() -> None:
    """The peak is that of the largest batch of the sampler, which has 240 frames, not of 20 of the longest samples."""
    rows = notes()

    def step_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        rows.append(batch.shape[0] * batch.shape[1])
        return model(batch).square().mean()  # type: ignore[no-any-return]  # a module's output has no type

    workload = Workload(nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 1)), loader_of(), step_fn=step_fn)
    options: Options = PLENTY.model_copy(update={"strategies": ("batching",)})
    with LocalBench(workload, CPU(), options) as bench:
        rows.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.measured
    assert max(rows) <= FRAMES
    assert bench.briefing.space.baseline.micro_batch_size == source_of(loader_of()).user_batch_size
