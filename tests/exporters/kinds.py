"""Workloads of many kinds, for the exported loop: what a user's script has, and nothing of autofit.

Each has 22 samples, of which the plans make two optimizer steps; the last micro batch is short.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Loss = Callable[[nn.Module, Any], Tensor]
SAMPLES = 22


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(torch.tanh(self.line(x)), 0.1, self.training)


class Net(nn.Module):
    """Vectors to three classes."""

    def __init__(self, columns: int = 6, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(columns, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.head(x)
        return output


class ConvNet(nn.Module):
    """Images of any size to three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.net = Net(8)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.net(self.stem(images).mean((2, 3)))
        return output


class WithLabels(nn.Module):
    """Returns its loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.net = Net()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> SimpleNamespace:
        mask = attention_mask[..., None]
        pooled = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return SimpleNamespace(loss=F.cross_entropy(self.net(pooled), labels))


@dataclass(frozen=True)
class Table:
    """A batch that is a data class."""

    rows: Tensor
    targets: Tensor


class Graph(nn.Module):
    """The nodes of graphs to three classes a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, graph: Tensor, count: int) -> Tensor:
        hidden = torch.tanh(self.node(nodes))
        output: Tensor = self.head(torch.zeros(count, 8).index_add(0, graph, hidden))
        return output


@dataclass
class Graphs:
    """Graphs of many sizes, their nodes one after the other."""

    nodes: Tensor
    graph: Tensor
    targets: Tensor


@dataclass
class Kind:
    """A workload.

    Attributes:
        model: makes the model.
        samples: makes the data set.
        loss: `(model, batch) -> loss`; in inference the forward pass.
        collate: the loader's.
        optimizer: makes the optimizer.
        blocks: the blocks to checkpoint, as the user would pass them.
        plan: knobs beside the batch.
        settings: of the plan's environment.
    """

    model: Callable[[], nn.Module]
    samples: Callable[[], Any]
    loss: Loss
    collate: Callable[[list[Any]], Any] | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=0.01)
    blocks: Callable[[Any], Any] | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def loader(self, size: int) -> DataLoader[Any]:
        """Returns the loader; the same samples in each process."""
        torch.manual_seed(1)
        return DataLoader(self.samples(), batch_size=size, collate_fn=self.collate)

    def fresh(self) -> nn.Module:
        """Returns the model, the same in each process."""
        torch.manual_seed(0)
        return self.model()


def vectors() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,)))


def images() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, 3, 8, 8), torch.randint(3, (SAMPLES,)))


def classify(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def as_dict(samples: list[Any]) -> dict[str, Any]:
    rows, targets = zip(*samples, strict=True)
    return {"names": [str(n) for n in range(len(rows))], "x": torch.stack(rows), "y": torch.stack(targets)}


def as_table(samples: list[Any]) -> Table:
    rows, targets = zip(*samples, strict=True)
    return Table(torch.stack(rows), torch.stack(targets))


def sentences() -> list[dict[str, Tensor]]:
    lengths = torch.randint(2, 9, (SAMPLES,)).tolist()
    return [{"ids": torch.randint(1, 20, (n,)), "label": torch.randint(3, ())} for n in lengths]


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    labels = torch.stack([sample["label"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def scenes() -> list[dict[str, Tensor]]:
    sizes = torch.randint(6, 12, (SAMPLES,)).tolist()
    return [{"image": torch.randn(3, 8, n), "label": torch.randint(3, ())} for n in sizes]


def detect(model: nn.Module, batch: list[dict[str, Tensor]]) -> Tensor:
    losses = [F.cross_entropy(model(each["image"][None]), each["label"][None]) for each in batch]
    return torch.stack(losses).mean()


def denoise(model: nn.Module, batch: Any) -> Tensor:
    clean, _ = batch
    noisy = clean + 0.1 * torch.randn_like(clean)
    return F.mse_loss(model(noisy), clean[:, :3])


def graphs() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(n, 6), torch.randint(3, ())) for n in torch.randint(1, 20, (SAMPLES,)).tolist()]


def as_graphs(samples: list[Any]) -> Graphs:
    nodes, targets = zip(*samples, strict=True)
    graph = torch.cat([torch.full((len(each),), at) for at, each in enumerate(nodes)])
    return Graphs(torch.cat(nodes), graph, torch.stack(targets))


def on_graphs(model: nn.Module, batch: Graphs) -> Tensor:
    return F.cross_entropy(model(batch.nodes, batch.graph, len(batch.targets)), batch.targets)


def predict(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(batch[0])
    return loss


KINDS = {
    "tuple of images and targets": Kind(ConvNet, images, classify, plan={"memory_format": "channels_last"}),
    "dict batch": Kind(Net, vectors, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), as_dict),
    "dataclass batch": Kind(Net, vectors, lambda m, b: F.cross_entropy(m(b.rows), b.targets), as_table),
    "list of dicts": Kind(ConvNet, scenes, detect, collate=list),
    "model with labels": Kind(WithLabels, sentences, lambda m, b: m(**b).loss, padded),
    "step function with noise": Kind(Net, vectors, denoise),
    "fused given, foreach planned": Kind(
        Net, vectors, classify, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        plan={"optimizer_implementation": "foreach"},
    ),
    "loop given, fused planned": Kind(
        Net, vectors, classify, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
        plan={"optimizer_implementation": "fused"},
    ),
    "SGD, clipped": Kind(
        Net, vectors, classify, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        plan={"optimizer_implementation": "for-loop"}, settings={"max_grad_norm": "0.5", "optimizer": "SGD"},
    ),
    "bf16": Kind(Net, vectors, classify, plan={"precision": "bf16"}),
    "fp16 with a scaler, clipped": Kind(
        Net, vectors, classify, plan={"precision": "fp16"}, settings={"max_grad_norm": "0.5"}
    ),
    "checkpointed blocks": Kind(
        Net, vectors, classify, blocks=lambda m: m.blocks, plan={"checkpointed_blocks": 2, "precision": "bf16"}
    ),
    "one micro batch a step": Kind(Net, vectors, classify, plan={"micro_batch_size": 12, "accumulation_steps": 1}),
    "graphs of many sizes": Kind(
        Graph, graphs, on_graphs, as_graphs, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        plan={"accumulation_steps": 6},
    ),
    "inference": Kind(
        Net, vectors, predict, plan={"precision": "bf16", "accumulation_steps": 1}, settings={"mode": "inference"}
    ),
}  # fmt: skip
