"""Batches of similar length: each sample once, little padding, and an order that only the user's sampler determines."""

from collections import Counter
from itertools import chain, pairwise
from statistics import fmean

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from autofit.workloads.resized_samplers import LEAST_WINDOWS, WINDOW_BATCHES, LengthBatches
from tests.workloads.ragged import text_lengths

LENGTHS = text_lengths(1000)


def shuffled(seed: int = 3, count: int = 1000) -> RandomSampler:
    return RandomSampler(LENGTHS[:count], generator=torch.Generator().manual_seed(seed))


def plain(sampler: RandomSampler) -> BatchSampler:
    return BatchSampler(sampler, 8, False)


def padded(batches: list[list[int]]) -> float:
    return fmean(max(LENGTHS[key] for key in keys) for keys in batches)


@pytest.mark.parametrize("count", [0, 3, 8, 9, 500, 1000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_sample_is_in_a_pass_as_with_torchs_batch_sampler(count: int, drop_last: bool) -> None:
    grouped = LengthBatches(shuffled(count=max(count, 1)), LENGTHS.__getitem__, 8, drop_last)
    users = BatchSampler(shuffled(count=max(count, 1)), 8, drop_last)
    for _ in range(2):
        ours, theirs = list(grouped), list(users)
        assert Counter(chain.from_iterable(ours)) == Counter(chain.from_iterable(theirs))
        assert len(ours) == len(theirs) == len(grouped) == len(users)
        assert [len(keys) for keys in ours] == [len(keys) for keys in theirs]
        if theirs and len(theirs[-1]) < 8:
            assert ours[-1] == theirs[-1]


def test_batches_are_nearly_without_padding() -> None:
    useful = fmean(LENGTHS)
    grouped = list(LengthBatches(shuffled(), LENGTHS.__getitem__, 8, True))
    assert padded(list(plain(shuffled()))) > 1.7 * useful
    assert padded(grouped) < 1.05 * useful


def test_a_generator_determines_the_batches_and_each_pass_has_others() -> None:
    one, other = (LengthBatches(shuffled(), LENGTHS.__getitem__, 8, False) for _ in range(2))
    passes = [(list(one), list(other)) for _ in range(2)]
    assert all(ours == theirs for ours, theirs in passes)
    first, second = ({frozenset(keys) for keys in ours} for ours, _ in passes)
    assert len(first & second) < 0.1 * len(first)


def test_no_random_numbers_are_drawn_beside_those_of_the_sampler() -> None:
    states = []
    for make in (lambda sampler: LengthBatches(sampler, LENGTHS.__getitem__, 8, False), plain):
        sampler = shuffled()
        torch.manual_seed(5)
        before = torch.get_rng_state()
        list(make(sampler))
        assert torch.equal(torch.get_rng_state(), before)
        states.append(sampler.generator.get_state())
    assert torch.equal(*states)


def test_long_and_short_batches_come_in_any_order() -> None:
    """In a training, the length of a batch must say nothing of when it comes."""
    firsts = Counter[int]()
    for seed in range(400):
        grouped = list(LengthBatches(shuffled(seed, 64), LENGTHS.__getitem__, 4, False))  # four windows of four
        ranks = sorted(range(4), key=lambda at: fmean(LENGTHS[key] for key in grouped[at]))
        firsts[ranks.index(0)] += 1
    assert all(70 <= firsts[rank] <= 130 for rank in range(4))  # 100 expected, deviation 8.7


def test_only_samples_that_were_drawn_together_are_batched_together() -> None:
    keys = SequentialSampler(range(1000))
    for size in (2, 4):
        grouped = list(LengthBatches(keys, LENGTHS.__getitem__, size, False))
        spans = [max(batch) - min(batch) for batch in grouped]
        assert max(spans) < WINDOW_BATCHES * size
        assert grouped != [list(batch) for batch in BatchSampler(keys, size, False)]
        assert all(a < b for batch in grouped for a, b in pairwise(batch))  # in the order drawn


def test_few_batches_come_from_several_windows() -> None:
    grouped = list(LengthBatches(SequentialSampler(range(80)), LENGTHS.__getitem__, 4, False))
    windows = [set(chain.from_iterable(grouped[at : at + 5])) for at in range(0, 20, 5)]
    assert windows == [set(range(at, at + 20)) for at in range(0, 80, 20)]
    assert len(windows) == LEAST_WINDOWS
