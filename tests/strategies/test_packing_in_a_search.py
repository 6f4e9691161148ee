"""A whole search on a language model: short texts share rows, and the training is the same."""

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import autofit
from tests.workloads.loaders import Texts, pad

DRAW = random.Random(0)
LENGTHS = [max(4, min(256, int(DRAW.lognormvariate(3.6, 0.8)))) for _ in range(640)]


def language_model() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_layer=3, n_head=2, vocab_size=len(LENGTHS), n_positions=256, bos_token_id=1, eos_token_id=2
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def collated(samples: Any) -> dict[str, torch.Tensor]:
    batch = pad(samples)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}


def texts() -> DataLoader[Any]:
    return DataLoader(Texts(LENGTHS), 16, shuffle=True, collate_fn=collated, generator=torch.Generator().manual_seed(1))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.slow
def test_a_search_packs_texts_and_is_faster_with_the_same_losses() -> None:
    fit = autofit.tune(
        language_model(),
        texts(),
        optimizer=sgd,
        global_batch_size=16,
        numerics="mixed",
        strategies=("packing",),
        memory_budget="2GiB",
        time_budget=60,
        device="cpu",
        study=":memory:",
        progress=False,
    )
    assert fit.plan.values["packing"] is True
    assert fit.gain is not None
    assert fit.gain.low > 1.2
    users = fit.baseline.outcome.measurement
    assert users is not None
    assert fit.proof.memory.judged_bytes <= 1.02 * users.memory.judged_bytes  # in the worst batch, no text shares a row
    losses = []
    for plan in ("packed", "plain"):
        model = language_model().eval()
        optimizer = sgd(model.parameters())
        if plan == "packed":
            with fit.prepare(model, texts(), optimizer) as step:
                model.eval()  # without dropout, whose random numbers are drawn for other rows
                losses.append([float(step(batch)) for batch, _ in zip(step.loader, range(6), strict=False)])
            continue
        losses.append([])
        for batch, _ in zip(texts(), range(6), strict=False):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
