"""Length grouping is offered where it saves padding by measurement, and refused with a reason everywhere else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.strategies import length_grouping
from autofit.strategies.base import Facts
from autofit.strategies.length_grouping import LengthGrouping
from autofit.workloads.sources import source_of
from tests.strategies.batch_facts import facts_of
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import Buckets, Graphs, Streamed, collate_graphs, text_lengths

LENGTHS = text_lengths(1000)
ON = Plan(values={"length_grouping": True})


def texts(lengths: list[int] = LENGTHS, **options: Any) -> DataLoader[Any]:
    return DataLoader(Texts(lengths), **{"batch_size": 8, "shuffle": True, "collate_fn": pad, **options})


def facts(loader: Any, **changes: Any) -> Facts:
    return facts_of(loader, **{"numerics": "any", **changes})


def reason(given: Facts) -> str:
    (refusal,) = LengthGrouping().offer(given).refused
    assert refusal.name == "length_grouping"
    return refusal.reason


def test_texts_are_offered_with_the_speed_that_the_saved_padding_suggests() -> None:
    given = facts(texts())
    (knob,) = LengthGrouping().offer(given).knobs
    assert (knob.values, knob.default, knob.same_memory) == ((False, True), False, (False, True))
    assert given.source is not None
    present, grouped = given.source.padding(16), given.source.by_length.padding(16)
    assert present > 0.4
    assert grouped < 0.1
    assert list(knob.expected) == pytest.approx([1.0, (1 - grouped) / (1 - present)])


def test_the_padding_of_single_samples_is_measured_on_larger_batches() -> None:
    assert LengthGrouping().offer(facts(texts(batch_size=1))).knobs


def test_a_saving_below_the_minimum_is_left_out_with_the_numbers() -> None:
    found = reason(facts(texts([40 + at % 2 for at in range(400)])))
    assert "at 16 samples, 1.2% of a batch is padding" in found
    assert "fewer elements, less than 3%" in found


class Named(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


LOADERS: dict[str, tuple[Callable[[], Any], str]] = {
    "same shape": (lambda: DataLoader(TensorDataset(torch.zeros(64, 3)), 8, shuffle=True), "the same shape"),
    "fixed length": (lambda: texts(collate_fn=lambda samples: torch.zeros(len(samples), 96)), "the same shape"),
    "buckets": (
        lambda: DataLoader(Texts(LENGTHS), batch_sampler=Buckets(LENGTHS, 8), collate_fn=pad),
        "Buckets decides which samples are batched together",
    ),
    "subset": (lambda: texts(shuffle=False, sampler=SubsetRandomSampler(range(500))), "SubsetRandomSampler decides"),
    "stream": (lambda: DataLoader(Streamed(Texts(LENGTHS)), 8, collate_fn=pad), "an iterable data set yields"),
    "ready": (lambda: [pad([Texts(LENGTHS)[at] for at in range(first, first + 8)]) for first in (0, 8)], "ready batch"),
    "own iteration": (lambda: Named(Texts(LENGTHS), 8, collate_fn=pad), "Named overrides __iter__"),
    "few": (lambda: texts(LENGTHS[:20]), "one pass has 20 samples, too few"),
    "graphs without padding": (
        lambda: DataLoader(Graphs(), 8, shuffle=True, collate_fn=collate_graphs),
        "0.0% of a batch is padding",
    ),
}


@pytest.mark.parametrize(("make", "words"), LOADERS.values(), ids=LOADERS)
def test_a_loader_whose_samples_keep_their_order_or_need_no_other_is_refused(
    make: Callable[[], Any], words: str
) -> None:
    assert words in reason(facts(make()))


def test_what_the_user_does_not_allow_or_what_has_no_training_is_refused() -> None:
    for numerics in ("exact", "mixed"):
        assert "numerics='any' allows another" in reason(facts(texts(), numerics=numerics))
    assert "inference" in reason(facts(texts(), training=False))
    assert "the same shape" in reason(facts(texts(), source=None))


def test_a_data_set_that_takes_too_long_to_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_grouping, "MOST_READING_S", 0.0)
    assert "reading all samples to learn their lengths would take" in reason(facts(texts()))


def test_a_collate_function_that_refuses_single_samples_is_a_reason_and_no_error() -> None:
    def pairs(samples: list[Any]) -> Any:
        if len(samples) == 1:
            raise ValueError("one sample has no partner")
        return pad(samples)

    assert "could not be measured: ValueError: one sample has no partner" in reason(facts(texts(collate_fn=pairs)))


def test_the_batches_of_a_plan_are_grouped_and_those_of_others_are_the_users() -> None:
    source, member = source_of(texts()), LengthGrouping()
    assert not member.acts(Plan())
    assert not member.acts(Plan(values={"length_grouping": False}))
    assert member.batches(ON, source) is source.by_length
    with pytest.raises(SpaceError, match="length_grouping='yes'"):
        member.acts(Plan(values={"length_grouping": "yes"}))
    with pytest.raises(SpaceError, match="length_grouping=True cannot be applied: an iterable data set"):
        member.batches(ON, source_of(DataLoader(Streamed(Texts(LENGTHS)), 8, collate_fn=pad)))


def test_the_worst_batch_is_the_same() -> None:
    source = source_of(texts())
    assert torch.equal(source.worst(8)["input_ids"], source.by_length.worst(8)["input_ids"])
