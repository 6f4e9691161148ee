"""Models of many kinds, trained as they should be."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

from scripts.bench import workloads
from scripts.bench.doctor.data import (
    CLASSES,
    SAMPLES,
    SIDE,
    WORDS,
    Given,
    classified,
    cnn,
    labels,
    loader_of,
    mlp,
    next_word,
    random_rows,
    random_words,
)


def _images(inplace: bool) -> Given:
    return {
        "model": cnn(inplace),
        "loader": loader_of(random_rows(3, SIDE, SIDE), labels()),
        "loss_fn": F.cross_entropy,
    }


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 64), nn.Linear(128, WORDS)
        self.inner = kind(64, 128, num_layers=2, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.out(self.inner(self.words(words))[0])
        return found


def recurrent(kind: Callable[..., nn.Module]) -> Given:
    return {"model": Recurrent(kind), "loader": loader_of(random_words()), "step_fn": next_word}


class Carried(nn.Module):
    """Carries its hidden state from batch to batch, detached."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(WORDS, 64), nn.GRU(64, 128), nn.Linear(128, WORDS)
        self.hidden: Tensor | None = None

    def forward(self, words: Tensor) -> Tensor:
        found, hidden = self.inner(self.words(words).transpose(0, 1), self.hidden)
        self.hidden = hidden.detach()
        out: Tensor = self.out(found).transpose(0, 1)
        return out


def carried_state() -> Given:
    return {"model": Carried(), "loader": loader_of(random_words()), "step_fn": next_word}


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.first, self.last = reentrant, nn.Linear(64, 256), nn.Linear(256, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        out: Tensor = self.last(x)
        return out


def checkpointed(reentrant: bool) -> Given:
    return classified(Checkpointed(reentrant))


def accumulated() -> Given:
    return classified(mlp(), global_batch_size=256)


def _autocast(model: nn.Module, batch: list[Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])


def amp() -> Given:
    return {"model": mlp(512), "loader": loader_of(random_rows(64), labels()), "step_fn": _autocast}


def compiled() -> Given:
    return classified(torch.compile(mlp(), backend="eager"))  # type: ignore[arg-type]  # a module, as it was given


def compiled_for_lengths() -> Given:
    """A compiled model whose batches have varying lengths, which the second compilation allows for."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten() % CLASSES)

    def padded(texts: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(texts, batch_first=True)

    texts: Any = [torch.randint(WORDS, (length % 40 + 20,)) for length in range(SAMPLES)]
    model = nn.Sequential(nn.Embedding(WORDS, 64), nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, CLASSES))
    loader: DataLoader[Any] = DataLoader(texts, batch_size=32, collate_fn=padded, drop_last=True)
    return {"model": torch.compile(model, backend="eager"), "loader": loader, "step_fn": loss}


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures of varying sizes that are made smaller, so that the memory of a worker rises and falls."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        picture = torch.rand(3, 40 + place % 40, 64)
        return F.interpolate(picture[None], size=(SIDE, SIDE))[0], place % CLASSES


def read_by_workers() -> Given:
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True, num_workers=2)
    return {"model": cnn(False), "loader": loader, "loss_fn": F.cross_entropy}


def sparse() -> Given:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(4096, 64, sparse=True), nn.Linear(64, CLASSES)

        def forward(self, words: Tensor) -> Tensor:
            found: Tensor = self.out(self.bag(words))
            return found

    return {
        "model": Bag(),
        "loader": loader_of(random_words(), labels()),
        "loss_fn": F.cross_entropy,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
    }


class Routed(nn.Module):
    """Experts that see different tokens, with tied weights of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(WORDS, 64), nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
        self.out = nn.Linear(64, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words).flatten(0, 1)
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, places, weight[places, None] * expert(x[places]))
        found: Tensor = self.out(x + out).unflatten(0, words.shape)
        return found


def routed() -> Given:
    return {"model": Routed(), "loader": loader_of(random_words()), "step_fn": next_word}


@dataclass
class Graph:
    """A graph, as a batch."""

    nodes: Tensor
    edges: Tensor
    label: Tensor


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 128)])
        self.out = nn.Linear(128, CLASSES)

    def forward(self, graph: Graph) -> Tensor:
        x = graph.nodes
        for layer in self.inner:
            x = layer(x)
            x = F.relu(x + torch.zeros_like(x).index_add(0, graph.edges[1], x[graph.edges[0]]))
        found: Tensor = self.out(x)
        return found


def graphs() -> Given:
    made = [Graph(torch.randn(200, 64), torch.randint(0, 200, (2, 900)), torch.arange(200) % 10) for _ in range(16)]

    def loss(model: nn.Module, graph: Graph) -> Tensor:
        return F.cross_entropy(model(graph), graph.label)

    return {"model": GraphNet(), "loader": DataLoader(made, batch_size=None), "step_fn": loss}  # type: ignore[arg-type]


class Packed(NamedTuple):
    sequences: PackedSequence
    labels: Tensor


def packed() -> Given:
    """Sequences of varying lengths, packed, in a named tuple."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.LSTM(64, 128), nn.Linear(128, CLASSES)

        def forward(self, sequences: PackedSequence) -> Tensor:
            found: Tensor = self.out(self.inner(sequences)[1][0][-1])
            return found

    def together(samples: list[tuple[Tensor, int]]) -> Packed:
        rows = pack_sequence([row for row, _ in samples], enforce_sorted=False)
        return Packed(rows, torch.tensor([label for _, label in samples]))

    def loss(model: nn.Module, batch: Packed) -> Tensor:
        return F.cross_entropy(model(batch.sequences), batch.labels)

    samples = [(torch.randn(8 + place % 40, 64), place % CLASSES) for place in range(SAMPLES)]
    loader: DataLoader[Any] = DataLoader(samples, batch_size=16, collate_fn=together)  # type: ignore[arg-type]  # a list is a data set
    return {"model": Last(), "loader": loader, "step_fn": loss}


class Rounded(torch.autograd.Function):
    """Rounds weights in the forward pass and hands their gradient through."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        scale = weight.abs().amax() / 127
        return (weight / scale).round() * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Quantised(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, Rounded.apply(self.weight), self.bias)  # type: ignore[no-untyped-call]


def quantised() -> Given:
    return classified(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), Quantised(256, 256), nn.ReLU(), Quantised(256, 10)))


def normalised() -> Given:
    layers = [parametrizations.spectral_norm(nn.Linear(256, 256)), nn.GELU()]
    layers += [parametrizations.weight_norm(nn.Linear(256, 256)), nn.GELU()]
    return classified(nn.Sequential(nn.Linear(64, 256), *layers, nn.Linear(256, CLASSES)))


def complex_valued() -> Given:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Parameter(torch.randn(64, 129, dtype=torch.cfloat) / 64)
            self.out = nn.Linear(256, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            mixed = torch.fft.irfft(torch.fft.rfft(x, n=256) * self.filters[: x.shape[1]], n=256)
            found: Tensor = self.out(F.gelu(mixed).mean(1))
            return found

    return {"model": Spectral(), "loader": loader_of(random_rows(64, 256), labels()), "loss_fn": F.cross_entropy}


def heard() -> Given:
    """Speech: a convolution over time, a GRU, and the loss CTC."""

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv1d(40, 96, 5, 2, 2), nn.Linear(192, 30)
            self.inner = nn.GRU(96, 96, bidirectional=True, batch_first=True)

        def forward(self, sounds: Tensor) -> Tensor:
            x = self.inner(F.relu(self.conv(sounds)).transpose(1, 2))[0]
            found: Tensor = self.out(x).log_softmax(-1).transpose(0, 1)
            return found

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        found, size = model(batch[0]), len(batch[0])
        return F.ctc_loss(found, batch[1] % 29 + 1, torch.full((size,), len(found)), torch.full((size,), 12))

    return {"model": Listener(), "loader": loader_of(random_rows(40, 100), random_words(12), size=16), "step_fn": loss}


def tagged() -> Given:
    """An encoder of torch on texts, one class for each word."""

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[0].flatten() % CLASSES)

    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, 64), nn.TransformerEncoder(layer, 3), nn.Linear(64, CLASSES))
    return {"model": model, "loader": loader_of(random_words()), "step_fn": loss}


class Streamed(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.randn(64), place % CLASSES) for place in range(SAMPLES)])


def streamed() -> Given:
    return classified(mlp()) | {"loader": DataLoader(Streamed(), batch_size=32, num_workers=1)}


def solved() -> Given:
    """A differential equation, solved in many small steps with the same weights."""

    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope, self.out = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(20):
                x = x + 0.05 * self.slope(x)
            found: Tensor = self.out(x)
            return found

    return classified(Solver())


MODELS: MappingProxyType[str, Callable[[], Given]] = MappingProxyType(
    {
        "cnn": lambda: _images(False),
        "cnn in place": lambda: _images(True),
        "gru": lambda: recurrent(nn.GRU),
        "lstm": lambda: recurrent(nn.LSTM),
        "carried state": carried_state,
        "u-net": workloads.unet,
        "resnet": workloads.resnet,
        "mlp": workloads.mlp,
        "accumulated": accumulated,
        "checkpointed": lambda: checkpointed(False),
        "checkpointed, reentrant": lambda: checkpointed(True),
        "amp": amp,
        "compiled": compiled,
        "compiled for lengths": compiled_for_lengths,
        "read by workers": read_by_workers,
        "sparse": sparse,
        "routed": routed,
        "graphs": graphs,
        "packed": packed,
        "quantised": quantised,
        "normalised": normalised,
        "complex": complex_valued,
        "heard": heard,
        "tagged": tagged,
        "streamed": streamed,
        "solved": solved,
    }
)
"""Workloads by name."""
