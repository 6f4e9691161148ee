"""Packing is offered where it saves rows, checked on a batch that is packed, and proven where nothing is."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import SpaceError, WorkloadError
from autofit.core.plan import Plan
from autofit.gates.check import GradientCheck
from autofit.gates.gradients import Steps
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.packing import Packing
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, TrainStep
from tests.fakes.decoders import Classifier
from tests.strategies.batch_facts import facts_of
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import text_lengths

ON = Plan(values={"packing": True})
LENGTHS = [length % 60 + 2 for length in text_lengths(100)]
RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch["input_ids"]), batch["label"]), False, "")


def texts(lengths: list[int] | None = None, collate: Any = pad) -> DataLoader[Any]:
    return DataLoader(Texts(lengths or LENGTHS), 8, shuffle=True, collate_fn=collate)


def facts(loader: Any, **changes: Any) -> Facts:
    return facts_of(loader, **{"model": Classifier(100), **changes})


def reason(given: Facts) -> str:
    (refusal,) = Packing().offer(given).refused
    return refusal.reason


@pytest.mark.parametrize("numerics", ["mixed", "any"])
def test_it_is_offered_where_it_saves_rows_and_says_how_many(numerics: Any) -> None:
    (knob,) = Packing().offer(facts(texts(), numerics=numerics)).knobs
    assert (knob.name, knob.values, knob.default) == ("packing", (False, True), False)
    assert 1.2 < knob.expected[1] < 3


def test_everything_else_is_refused_with_a_reason() -> None:
    given = facts(texts())
    same_shape = DataLoader(TensorDataset(torch.zeros(32, 3)), 8)
    assert "pad each only to its longest sample" in reason(facts(same_shape))
    assert "the same shape" in reason(replace(given, source=None))
    assert "inference" in reason(replace(given, training=False))
    assert "numerics='exact' keeps the arithmetic" in reason(replace(given, numerics="exact"))
    assert "no part that is a language model" in reason(replace(given, model=nn.Linear(2, 2)))
    assert "save less than 3%" in reason(facts(texts([40, 39] * 20)))

    def unnamed(samples: Any) -> Any:
        return tuple(pad(samples).values())

    assert "do not name their input_ids and attention_mask" in reason(facts(texts(collate=unnamed)))


def test_the_worst_batch_is_as_large_as_if_every_sample_were_the_longest() -> None:
    member, source = Packing(), source_of(texts([*[5] * 60, 64]))
    assert not member.acts(Plan())
    filled = member.batches(ON, source)
    assert filled is member.batches(ON, source)
    worst, users = filled.worst(8), source.worst(8)
    assert worst["input_ids"].shape == users["input_ids"].shape == (8, 64)
    model = Classifier(100)
    with member.apply(ON, Draft(model, RULE, None, torch.device("cpu"))):
        model(worst["input_ids"])
        model.decoder(input_ids=worst["input_ids"], attention_mask=worst["attention_mask"])
    assert model.decoder.calls == [(8, 64), (8, 64)]  # by the tokens and by the mask, no sample shares a row


def test_values_that_are_neither_false_nor_true_and_other_models_are_refused() -> None:
    with pytest.raises(SpaceError, match="expected False or True"):
        Packing().acts(Plan(values={"packing": 1}))
    other = Draft(nn.Linear(2, 2), RULE, None, torch.device("cpu"))
    with pytest.raises(SpaceError, match="expected False, since the model has no part"), Packing().apply(ON, other):
        pass


def test_the_gate_compares_a_batch_that_is_packed() -> None:
    found = Packing().gate_batch(facts(texts()))
    assert found is not None
    assert found.samples == 4
    with pytest.raises(WorkloadError, match="no batch of up to 16 of 128 samples needs fewer rows"):
        Packing().gate_batch(facts(texts([40, 39] * 20)))


@pytest.mark.parametrize("short_first", [False, True])
def test_all_texts_of_a_sample_count(short_first: bool) -> None:
    def both(samples: Any) -> Any:
        short = [{"input_ids": [3] * 4, "label": 0} for _ in samples]
        texts = {"a": pad(short), "b": pad(samples)} if short_first else {"a": pad(samples), "b": pad(short)}
        return {f"{side}_{name}": tensor for side, text in texts.items() for name, tensor in text.items()}

    (knob,) = Packing().offer(facts(texts(collate=both))).knobs
    (alone,) = Packing().offer(facts(texts())).knobs
    assert 1.05 < knob.expected[1] < alone.expected[1]


@pytest.mark.parametrize("leaks", [False, True])
def test_a_check_refuses_a_decoder_that_mixes_the_samples_of_a_row(leaks: bool) -> None:
    torch.manual_seed(0)
    model = Classifier(100, leaks)
    optimizer = torch.optim.SGD(model.parameters())

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft(model, RULE, optimizer, torch.device("cpu")), members())

    given = facts(texts(), model=model, optimizer=optimizer)
    assert given.source is not None
    baseline = Plan(values={"micro_batch_size": given.micro_batch_size, "accumulation_steps": 1, "packing": False})
    plan = baseline.replace(packing=True)
    check = GradientCheck(given, members(), Steps(build), given.source, lambda: None, plan, baseline, {})
    check.run()
    found = check.result()
    assert found.passed is not leaks
    gate = found.verdicts["packing=True"]
    assert ("does not keep the samples of a row apart" if leaks else "relative L2 of the gradient") in gate.reason
    assert all(parameter.grad is None for parameter in model.parameters())
