"""Real cases of batches that are not one row per sample: graphs, bags, detection; and batch samplers with buckets."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


@dataclass
class GraphBatch:
    """Graphs whose nodes are concatenated."""

    x: torch.Tensor  # [nodes, features]
    edges: torch.Tensor  # [2, edges]
    graph: torch.Tensor  # [nodes]: which graph a node is of
    y: torch.Tensor  # [graphs]
    graphs: int


class Graphs(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Rings of 3 to 40 nodes; the target is a mean over the nodes."""

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(3, 41, (count,), generator=generator).tolist()
        self.nodes = [torch.randn(size, 6, generator=generator) for size in sizes]

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.nodes[index]
        at = torch.arange(len(x))
        return x, torch.stack([at, at.roll(1)]), x.mean()


def collate_graphs(samples: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> GraphBatch:
    nodes, edges, targets = zip(*samples, strict=True)
    sizes = torch.tensor([len(x) for x in nodes])
    starts = sizes.cumsum(0) - sizes
    return GraphBatch(
        x=torch.cat(nodes),
        edges=torch.cat([edge + start for edge, start in zip(edges, starts, strict=True)], dim=1),
        graph=torch.arange(len(nodes)).repeat_interleave(sizes),
        y=torch.stack(targets),
        graphs=len(nodes),
    )


class GraphNet(nn.Module):
    """Two rounds of messages, then a mean over the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 16), nn.Linear(32, 16), nn.Linear(16, 1)

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        x = batch.x
        for layer in (self.first, self.second):
            messages = torch.zeros_like(x).index_add(0, batch.edges[1], x[batch.edges[0]])
            x = torch.relu(layer(torch.cat([x, messages], dim=1)))
        total = x.new_zeros(batch.graphs, 16).index_add(0, batch.graph, x)
        nodes = x.new_zeros(batch.graphs).index_add(0, batch.graph, torch.ones_like(x[:, 0]))
        output: torch.Tensor = self.head(total / nodes[:, None]).squeeze(1)
        return output


def graph_loss(model: nn.Module, batch: GraphBatch) -> torch.Tensor:
    return F.mse_loss(model(batch), batch.y)


class Clicks(Dataset[dict[str, Any]]):
    """Thirteen numbers, a bag of 1 to 12 categories, and whether it was clicked."""

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dense = torch.randn(count, 13, generator=generator)
        sizes = torch.randint(1, 13, (count,), generator=generator).tolist()
        self.bags = [torch.randint(0, 400, (size,), generator=generator) for size in sizes]
        self.clicked = torch.randint(0, 2, (count,), generator=generator).float()

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"dense": self.dense[index], "bag": self.bags[index], "clicked": self.clicked[index]}


def collate_clicks(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    sizes = torch.tensor([len(sample["bag"]) for sample in samples])
    return {
        "values": torch.cat([sample["bag"] for sample in samples]),
        "offsets": sizes.cumsum(0) - sizes,
        "dense": torch.stack([sample["dense"] for sample in samples]),
        "clicked": torch.stack([sample["clicked"] for sample in samples]),
    }


def collate_bags(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Several tensors have one row per value here, so that a vote among tensors counts values."""
    batch = collate_clicks(samples)
    weights = torch.ones_like(batch["values"], dtype=torch.float32)
    return (batch["values"], weights), batch["offsets"], batch["clicked"]  # type: ignore[return-value]


class Dlrm(nn.Module):
    def __init__(self, dense: bool = True) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(400, 256, mode="sum")
        self.bottom, self.top = nn.Linear(13, 256), nn.Linear(512 if dense else 256, 1)

    def forward(self, values: Any, offsets: torch.Tensor, dense: torch.Tensor | None = None) -> torch.Tensor:
        found = self.bags(values, offsets)
        if dense is not None:
            found = torch.cat([found, torch.relu(self.bottom(dense))], dim=1)
        output: torch.Tensor = self.top(found).squeeze(1)
        return output


def click_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(batch["values"], batch["offsets"], batch["dense"])
    return F.binary_cross_entropy_with_logits(found, batch["clicked"])


def bag_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    (values, _), offsets, clicked = batch
    return F.binary_cross_entropy_with_logits(model(values, offsets), clicked)


class Images(Dataset[dict[str, torch.Tensor]]):
    """Images of several widths, with 1 to 5 boxes each."""

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(32, 65, (count,), generator=generator).tolist()
        boxes = torch.randint(1, 6, (count,), generator=generator).tolist()
        self.images = [torch.randn(3, 32, size, generator=generator) for size in sizes]
        self.boxes = [torch.rand(size, 4, generator=generator) for size in boxes]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.images[index], "boxes": self.boxes[index]}


def as_list(samples: list[Any]) -> list[Any]:
    return samples


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 16), nn.Linear(16, 4)

    def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
        pixels = [image.flatten(1).t() for image in images]
        output: torch.Tensor = self.head(torch.stack([torch.relu(self.stem(each)).mean(0) for each in pixels]))
        return output


def box_loss(model: nn.Module, batch: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    found = model([sample["image"] for sample in batch])
    wanted = torch.stack([sample["boxes"].mean(0) for sample in batch])
    loss: torch.Tensor = (found - wanted).square().sum(1).mean()
    return loss


@dataclass(frozen=True)
class Case:
    """A model with its loss, and a loader of its data."""

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    data: Callable[[], Dataset[Any]]
    collate: Callable[[list[Any]], Any]

    def loader(self, batch_size: int = 8, **options: Any) -> DataLoader[Any]:
        return DataLoader(self.data(), batch_size=batch_size, collate_fn=self.collate, **options)

    def fresh(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model()


CASES = {
    "graphs": Case(GraphNet, graph_loss, Graphs, collate_graphs),
    "dlrm": Case(Dlrm, click_loss, Clicks, collate_clicks),
    "bags": Case(lambda: Dlrm(dense=False), bag_loss, Clicks, collate_bags),
    "detection": Case(Detector, box_loss, Images, as_list),
}


class Streamed(IterableDataset[Any]):
    """The samples of another data set, one after the other."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        for at in range(len(self.data)):
            yield self.data[at]


class Buckets:
    """Batches of samples of like length: sorted in ten groups, cut into batches, the batches shuffled."""

    def __init__(self, lengths: list[int], batch_size: int, seed: int = 0) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batches(self) -> list[list[int]]:
        draw = random.Random(self.seed + self.epoch)
        order = list(range(len(self.lengths)))
        draw.shuffle(order)
        order.sort(key=lambda at: self.lengths[at] // 8)
        batches = []
        for bucket in range(max(self.lengths) // 8 + 1):
            of_bucket = [at for at in order if self.lengths[at] // 8 == bucket]
            batches += [of_bucket[at : at + self.batch_size] for at in range(0, len(of_bucket), self.batch_size)]
        draw.shuffle(batches)
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._batches()

    def __len__(self) -> int:
        return len(self._batches())


class MadeBuckets:
    """As `Buckets`, but its batches are made in the constructor."""

    def __init__(self, lengths: list[int], batch_size: int) -> None:
        self.lengths = lengths
        self.made = list(Buckets(lengths, batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


class Sentences(Dataset[dict[str, Any]]):
    """Texts of given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [index % 50 + 1] * self.lengths[index], "label": index % 4}


def text_lengths(count: int = 512, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [int(8 + 88 * draw.random() ** 2) for _ in range(count)]
