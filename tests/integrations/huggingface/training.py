"""A small real Trainer, for the tests of the integration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LAYERS, LENGTH, WORDS = 4, 8, 64


def samples(count: int = 64) -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


def model() -> Any:
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=LAYERS, n_head=2, **ends)
    )


def arguments(folder: Path, **fields: Any) -> Any:
    """Returns arguments with which nothing is logged or saved."""
    chosen = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "max_steps": 2}
    return TrainingArguments(output_dir=str(folder), disable_tqdm=True, **{**chosen, **fields})


def trainer(args: Any, callbacks: Sequence[Any] = (), kind: type[Any] = Trainer, **others: Any) -> Any:
    return kind(**{"model": model(), "args": args, "train_dataset": samples(), "callbacks": list(callbacks), **others})
