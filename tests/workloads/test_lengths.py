"""Lengths: what is scanned, what counts as varying, which samples are the worst, which tokens are useful."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from autofit.workloads import lengths as lengths_module
from autofit.workloads.lengths import (
    LEAST_SCANNED,
    elements,
    evenly_spaced,
    extents,
    scan,
    sequence_length,
    useful_tokens,
    with_length,
)
from tests.fakes import FakeTime


def test_where_reading_is_slow_the_scan_ends_in_time_and_is_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(lengths_module, "monotonic", clock)

    def slow(at: int) -> torch.Tensor:
        clock.advance(0.15)
        return torch.zeros(at + 1)

    positions = scan(slow, 5000, 2048, 10.0).positions
    assert 60 <= len(positions) <= 70
    assert (positions[0], positions[-1]) == (0, 4999)
    gaps = [after - before for before, after in pairwise(positions)]
    assert max(gaps) <= 3 * min(gaps)
    assert list(positions) == sorted(positions)
    assert len(scan(slow, 5000, 2048, 0.0).positions) == LEAST_SCANNED
    assert len(scan(slow, 5000, 2048).positions) == 2048


def test_spaced_takes_all_or_both_ends() -> None:
    assert evenly_spaced(3, 10) == [0, 1, 2]
    few = evenly_spaced(100_000, 2048)
    assert len(set(few)) == 2048
    assert (few[0], few[-1]) == (0, 99_999)
    assert evenly_spaced(10, 1) == [9]


@pytest.mark.fault("F36")
def test_scan_finds_the_outlier_and_the_short_ones() -> None:
    sizes = [5, 3, 50, 4]
    lengths = scan(lambda at: (torch.zeros(sizes[at]), at), 4, 100)
    assert lengths.varies
    assert lengths.rankings()[0] == (2, 0, 3, 1)
    assert lengths.shortest()[0] == 1


def test_scan_of_equal_samples_does_not_vary() -> None:
    lengths = scan(lambda at: {"x": torch.zeros(3, 4), "y": at}, 5, 100)
    assert not lengths.varies
    assert lengths.rankings() == [(0, 1, 2, 3, 4)]


def test_scan_calls_each_position_once_and_no_more_than_the_limit() -> None:
    asked: list[int] = []

    def sample(at: int) -> torch.Tensor:
        asked.append(at)
        return torch.zeros(at + 1)

    lengths = scan(sample, 1000, 10)
    assert len(asked) == len(set(asked)) == 10
    assert lengths.positions == tuple(sorted(asked))
    assert lengths.rankings()[0][0] == 999


def test_mixture_begins_with_the_extreme_of_each_field() -> None:
    samples = [
        {"input": torch.zeros(4), "target": torch.zeros(4)},
        {"input": torch.zeros(90), "target": torch.zeros(1)},
        {"input": torch.zeros(1), "target": torch.zeros(80)},
        {"input": torch.zeros(50), "target": torch.zeros(50)},
    ]
    orders = scan(samples.__getitem__, 4, 100).rankings()
    assert any(set(order[:2]) == {1, 2} for order in orders)  # a long input beside a long target
    assert any(order[0] == 3 for order in orders)  # the largest total


def test_equal_areas_of_different_sides_vary() -> None:
    sides = [(4, 8), (8, 4), (5, 5)]
    lengths = scan(lambda at: torch.zeros(3, *sides[at]), 3, 100)
    assert any(set(order[:2]) == {0, 1} for order in lengths.rankings())


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        ("text", {"": (4,)}),
        ({"ids": [1, 2, 3], "label": 1}, {".ids": (3,)}),
        ((torch.zeros(2, 5), 3), {".0": (2, 5)}),
        (7, {}),
        ([torch.zeros(4) for _ in range(20)], {"": (20, 80)}),
        ([], {"": (0,)}),
    ],
)
def test_extents(sample: Any, found: dict[str, tuple[int, ...]]) -> None:
    assert extents(sample) == found


def test_extents_of_an_image_in_the_manner_of_pil() -> None:
    image = type("Image", (), {"mode": "RGB", "size": (640, 480)})()
    assert extents({"image": image}) == {".image": (640, 480)}


def test_a_field_that_some_samples_lack_varies() -> None:
    samples: list[dict[str, torch.Tensor]] = [{"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(9)}]
    assert scan(samples.__getitem__, 2, 10).rankings()[0] == (1, 0)


def test_elements_counts_all_tensors() -> None:
    assert elements({"a": torch.zeros(2, 3), "b": [torch.zeros(4)], "c": "x"}) == 10


MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
LABELS = torch.tensor([[5, -100, -100], [5, 6, -100]])


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": MASK, "labels": LABELS}, 3),
        ({"inputs": {"attention_mask": MASK.bool()}}, 3),
        ({"x": torch.zeros(2, 3), "labels": LABELS}, 3),
        ({"x": torch.zeros(2, 9), "lengths": torch.tensor([4, 2])}, 6),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.long)}, 6),
        ({"pixel_values": torch.zeros(2, 3, 8, 8), "labels": torch.tensor([1, 2])}, None),
        ((torch.zeros(2, 3), torch.tensor([1, 2])), None),
        ({"x": torch.zeros(2, 3), "attention_mask": torch.zeros(2, 3)}, None),
    ],
)
def test_useful_tokens(batch: Any, count: int | None) -> None:
    assert useful_tokens(batch) == count


def test_a_batch_has_a_sequence_length_if_its_tensors_have_one_in_common() -> None:
    tokens, mask, labels = torch.arange(12).reshape(2, 6), torch.ones(2, 6, 3), torch.tensor([0, 1])
    assert sequence_length({"ids": tokens, "mask": mask, "labels": labels}) == 6
    assert sequence_length({"ids": tokens, "pairs": torch.ones(2, 1, 6, 6)}) is None
    assert sequence_length(labels) is None


@pytest.mark.parametrize(("length", "last"), [(4, 3), (6, 5), (15, 2)])
def test_a_batch_of_another_length_is_cut_or_continued(length: int, last: int) -> None:
    given = {"ids": torch.arange(12).reshape(2, 6), "mask": torch.ones(2, 6, 3), "labels": torch.tensor([0, 1])}
    found = with_length(given, length)
    assert (found["ids"].shape, found["mask"].shape) == ((2, length), (2, length, 3))
    assert found["ids"][0, -1] == last
    assert torch.equal(found["labels"], given["labels"])
    assert sequence_length(found) == length
