"""Tiny workloads that the tests of probing share; also targets for the worker: `tests/probing/targets.py:make_mlp`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autofit.workloads.workload import Workload

VOCABULARY = 32


def mlp(width: int = 16, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, classes))


def vectors(samples: int = 64, batch_size: int = 8, classes: int = 4) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 8, generator=generator)
    targets = torch.randint(0, classes, (samples,), generator=generator)
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True)


class Sentences(Dataset[Any]):
    """Token sequences whose lengths go through `lengths` again and again."""

    def __init__(self, lengths: tuple[int, ...], samples: int = 48) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = [
            torch.randint(1, VOCABULARY, (lengths[at % len(lengths)],), generator=generator) for at in range(samples)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.rows[at]


def pad(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def sentences(lengths: tuple[int, ...] = (3, 24), batch_size: int = 8, samples: int = 48) -> DataLoader[Any]:
    return DataLoader(Sentences(lengths, samples), batch_size=batch_size, shuffle=True, collate_fn=pad)


class Overflowing(nn.Module):
    """Its activations are beyond what fp16 can say, and harmless in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second(self.first(x * 1e5) * 1e-5)
        return output


class Transformer(nn.Module):
    """Two encoder layers over tokens; returns logits."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.blocks(self.embed(ids)))
        return output


def token_mean(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The usual loss of a language model: the mean over all tokens that are not padding."""
    return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def sample_mean(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean over samples of the mean over tokens: splitting a batch keeps it."""
    logits = model(batch["input_ids"]).transpose(1, 2)
    losses = F.cross_entropy(logits, batch["labels"], reduction="none")
    mask = batch["labels"] != -100
    return (losses.sum(1) / mask.sum(1)).mean()


def make_mlp(**changes: Any) -> Workload:
    return Workload(mlp(), vectors(), **changes)


def make_evaluated() -> dict[str, object]:
    return {"model": mlp(), "loader": vectors(), "eval_loader": vectors(batch_size=4)}


def make_transformer() -> Workload:
    return Workload(Transformer(), sentences((6,)), step_fn=token_mean)


def make_nothing() -> None:
    """What a factory without `return` gives."""


def make_misspelt() -> dict[str, object]:
    return {"model": mlp(), "loader": vectors(), "los_fn": F.cross_entropy}


def make_badly_set() -> dict[str, object]:
    return {"model": mlp(), "loader": vectors(), "numerics": "precise"}


def make_dict() -> dict[str, object]:
    given = {"time_budget": "5min", "study": "mine.db", "memory_budget": "2GiB"}
    return {"model": mlp(), "loader": vectors(), **given}


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("broken on purpose: model")


class BrokenRows(TensorDataset):
    def __getitem__(self, at: int) -> tuple[torch.Tensor, ...]:
        raise KeyError("broken on purpose: data")


def broken_recipe(parameters: object) -> torch.optim.Optimizer:
    raise KeyError("broken on purpose: optimizer")


def make_broken(place: str) -> Workload:
    if place == "factory":
        raise KeyError("broken on purpose: factory")
    loader = DataLoader(BrokenRows(torch.zeros(8, 8)), batch_size=4) if place == "data" else vectors()
    recipe = broken_recipe if place == "optimizer" else None
    return Workload(Broken(8, 4) if place == "model" else mlp(), loader, optimizer=recipe)


def make_exiting(name: str) -> Workload:
    """A workload whose step raises what would end a process."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        raise {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit, "GeneratorExit": GeneratorExit}[name]

    return Workload(mlp(), vectors(), step_fn=step)


def wide_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def make_wide() -> Workload:
    """A workload that needs 192 KiB more for each sample: 3 activations of 2**14 numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2**14), nn.Tanh(), nn.Tanh())
    return Workload(model, DataLoader(TensorDatasetOfOne(), batch_size=8), step_fn=wide_step)


class TensorDatasetOfOne(Dataset[Any]):
    """Samples that are one tensor each."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((4,), 1.0 / (1 + at))


class Controlled:
    """A step that does what a file says: the way of a test to reach into the worker's process."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        sys.stdout.write("x" * 100_000 + "\n")
        sys.stdout.write('{"kind": "outcome", "forged": true}\n')
        order = self.path.read_text()
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "garble":
            write = int(sys.argv[sys.argv.index("--write") + 1])
            os.write(write, b"this is no reply\n")
        if order == "sleep":
            self.path.with_suffix(".asleep").touch()
            time.sleep(300)
        if order == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen(["sleep", "300"])
            time.sleep(300)
        return F.cross_entropy(model(batch[0]), batch[1])


def make_controlled(path: str) -> Workload:
    sys.stdout.write("flood " * 200_000)
    return Workload(mlp(), vectors(), step_fn=Controlled(path))
