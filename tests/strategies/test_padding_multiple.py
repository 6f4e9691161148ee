"""Padding to a multiple is offered where tensor cores may gain by it and the collate function knows how to pad."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.strategies.base import Facts
from autofit.strategies.padding_multiple import PaddingMultiple
from autofit.workloads.dataloaders import source_of
from tests.strategies.batch_facts import facts_of
from tests.workloads.loaders import Padding, Texts, pad
from tests.workloads.ragged import text_lengths


def texts(collate: Any) -> DataLoader[Any]:
    return DataLoader(Texts(text_lengths(100)), 8, shuffle=True, collate_fn=collate)


def facts(loader: Any, **changes: Any) -> Facts:
    return facts_of(loader, **{"device_type": "cuda", "capabilities": frozenset({"tf32"}), **changes})


def reason(given: Facts) -> str:
    (refusal,) = PaddingMultiple().offer(given).refused
    return refusal.reason


@pytest.mark.parametrize("numerics", ["mixed", "any"])
def test_it_is_offered_to_a_collate_function_that_can_pad(numerics: Any) -> None:
    (knob,) = PaddingMultiple().offer(facts(texts(Padding()), numerics=numerics)).knobs
    assert (knob.name, knob.values, knob.default) == ("padding_multiple", (1, 8), 1)


def test_everything_else_is_refused_with_a_reason() -> None:
    given = facts(texts(Padding()))
    same_shape = DataLoader(TensorDataset(torch.zeros(32, 3)), 8)
    assert "the same shape" in reason(facts(same_shape))
    assert "the same shape" in reason(replace(given, source=None))
    assert "inference" in reason(replace(given, training=False))
    assert "numerics='exact' keeps the arithmetic" in reason(replace(given, numerics="exact"))
    assert "this cpu device has no tensor cores" in reason(
        replace(given, capabilities=frozenset({"bf16"}), device_type="cpu")
    )
    assert "pad has no pad_to_multiple_of" in reason(facts(texts(pad)))


def test_the_batches_of_a_plan_are_padded_and_those_of_others_are_the_users() -> None:
    source, member = source_of(texts(Padding())), PaddingMultiple()
    assert member.batches(Plan(), source) is member.batches(Plan(values={"padding_multiple": 1}), source) is source
    on = Plan(values={"padding_multiple": 8})
    assert member.batches(on, source) is source.padded_to(8)
    for value in (True, 0, "8"):
        with pytest.raises(SpaceError, match="padding_multiple="):
            member.batches(Plan(values={"padding_multiple": value}), source)
    with pytest.raises(SpaceError, match="pad has no pad_to_multiple_of"):
        member.batches(on, source_of(texts(pad)))


def test_the_collate_functions_of_transformers_pad() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": 0, **{f"w{at}": at for at in range(1, 50)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    samples: Any = [{"input_ids": [7] * length, "labels": length % 2} for length in text_lengths(64)]
    collate = transformers.DataCollatorWithPadding(tokenizer)
    source = source_of(DataLoader(samples, 8, shuffle=True, collate_fn=collate))
    assert PaddingMultiple().offer(facts(source.loader)).knobs
    for batch in source.padded_to(8).typical(8, 4):
        assert batch["input_ids"].shape[1] % 8 == 0
        assert torch.equal(batch["attention_mask"], (batch["input_ids"] != 0).long())
    assert collate.pad_to_multiple_of is None
