"""A model that packs its batches trains in a Trainer with the losses of one that does not."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer

from autofit.core.errors import UsageError
from autofit.fit import Fit
from autofit.integrations.huggingface import apply, pack
from tests.conformance.test_exporters import OWN, answer
from tests.fakes.decoders import Decoder
from tests.integrations.huggingface.training import arguments, model

LENGTHS = (8, 2, 3, 1)
PLAN = Fit(answer(OWN.replace(packing=True, micro_batch_size=4, accumulation_steps=1)))


def collated(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(samples), max(LENGTHS), dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = sample["input_ids"]
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def losses(args: Any, language_model: nn.Module) -> tuple[list[float], set[tuple[int, ...]]]:
    """Returns the loss of each step, and the shapes of what the first layer was given."""
    texts = [{"input_ids": torch.arange(1, length + 1)} for length in LENGTHS * 4]
    shapes = set[tuple[int, ...]]()
    layer: Any = language_model.get_submodule("transformer.h.0")
    layer.register_forward_pre_hook(lambda _, given: shapes.add(tuple(given[0].shape[:2])))
    trainer = Trainer(model=language_model, args=args, train_dataset=texts, data_collator=collated)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], shapes


def without_dropout() -> nn.Module:
    found: nn.Module = model()
    for module in found.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    found.config.attn_pdrop = 0.0  # type: ignore[union-attr]  # of transformers
    return found


def test_a_trainer_trains_on_packed_rows_with_the_same_losses(tmp_path: Path) -> None:
    args = arguments(tmp_path, logging_strategy="steps", logging_steps=1, max_steps=4)
    packed = without_dropout()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed = apply(PLAN, args, packed)
    gc.collect()
    mine, shapes = losses(changed, packed)
    assert shapes == {(2, 8)}
    plain = Fit(answer(OWN.replace(micro_batch_size=4, accumulation_steps=1)))
    theirs, shapes = losses(apply(plain, args), without_dropout())
    assert shapes == {(4, 8)}
    assert len(mine) == 4
    assert mine == pytest.approx(theirs, rel=1e-4)


def test_without_the_model_a_warning_says_how_to_pack(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"packing=True \(write: pass the model to autofit\.integrations\.huggingface\.apply"
    ):
        apply(PLAN, arguments(tmp_path))


def test_a_model_that_cannot_be_packed_is_refused() -> None:
    with pytest.raises(UsageError, match="this model cannot be packed: the model has no part"):
        pack(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="does not keep the samples of a row apart with this version"):
        pack(Decoder(20, leaks=True))


def test_copies_of_a_model_in_one_process_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    args._n_gpu = 2
    with pytest.raises(UsageError, match="found n_gpu=2, and the plan has packing=True"):
        apply(PLAN, args, model())
