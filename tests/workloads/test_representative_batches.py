"""Representative: a few batches have what the data gives on average, whatever the seed and the size."""

import random
from itertools import combinations
from statistics import fmean

import pytest
import torch

from autofit.workloads.lengths import Lengths, scan
from autofit.workloads.representative_batches import expected_largest, representative


def texts(count: int = 512, seed: int = 1) -> list[int]:
    """Lengths of texts, most of them short."""
    draw = random.Random(seed)
    return [int(8 + 88 * draw.random() ** 2) for _ in range(count)]


def lengths_of(sizes: list[int]) -> Lengths:
    return scan(lambda at: torch.zeros(sizes[at]), len(sizes), len(sizes))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_the_expected_largest_is_the_mean_over_all_choices(size: int) -> None:
    values = [4, 9, 1, 7, 7, 20]
    every = [max(choice) for choice in combinations(values, size)]
    assert expected_largest(values, size) == pytest.approx(fmean(every))


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(8))
def test_four_batches_are_like_all(size: int, seed: int) -> None:
    sizes = texts()
    batches = representative(lengths_of(sizes), size, 4, random.Random(seed))
    assert batches is not None
    useful = fmean(sizes[at] for batch in batches for at in batch)
    padded = fmean(max(sizes[at] for at in batch) for batch in batches)
    assert useful == pytest.approx(fmean(sizes), rel=0.02)
    assert padded == pytest.approx(expected_largest(sizes, size), rel=0.02)


def test_no_sample_comes_twice_and_a_seed_draws_the_same() -> None:
    lengths = lengths_of(texts())
    drawn = [representative(lengths, 4, 8, random.Random(3)) for _ in range(2)]
    assert drawn[0] == drawn[1] != representative(lengths, 4, 8, random.Random(4))
    assert drawn[0] is not None
    assert len({at for batch in drawn[0] for at in batch}) == 32


def test_the_first_batches_are_as_like_all_as_they_can_be() -> None:
    sizes = texts()
    for seed in range(8):
        batches = representative(lengths_of(sizes), 2, 4, random.Random(seed))
        assert batches is not None
        padded = [max(sizes[at] for at in batch) for batch in batches]
        mean = fmean(padded)
        for first in range(3):
            off = [abs(fmean([*padded[:first], other]) - mean) for other in padded[first:]]
            assert off[0] == min(off)


def test_two_fields_are_both_like_all() -> None:
    questions, answers = texts(seed=1), texts(seed=2)
    lengths = scan(lambda at: {"q": torch.zeros(questions[at]), "a": torch.zeros(answers[at])}, 512, 512)
    batches = representative(lengths, 4, 4, random.Random(0))
    assert batches is not None
    padded = fmean(max(questions[at] for at in batch) + max(answers[at] for at in batch) for batch in batches)
    assert padded == pytest.approx(expected_largest(questions, 4) + expected_largest(answers, 4), rel=0.03)


def test_a_long_field_does_not_hide_another() -> None:
    ids, addresses = texts(seed=1), [25 * length for length in texts(seed=2)]
    lengths = scan(lambda at: {"ids": torch.zeros(ids[at]), "url": "x" * addresses[at]}, 512, 512)
    for seed in range(8):
        batches = representative(lengths, 4, 4, random.Random(seed))
        assert batches is not None
        padded = fmean(max(ids[at] for at in batch) for batch in batches)
        assert padded == pytest.approx(expected_largest(ids, 4), rel=0.1)


def test_too_few_samples_are_no_choice() -> None:
    assert representative(lengths_of([3, 5, 8]), 2, 2, random.Random(0)) is None
    assert representative(lengths_of([3, 5, 8]), 1, 3, random.Random(0)) is not None
