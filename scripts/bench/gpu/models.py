"""The benchmark models: a GPT on texts of varying length, a residual network on images, an MLP on a table.

Each function is a target of `autofit tune`, at two scales. "full" is meant for a data-centre GPU, and its budgets
include the context of such a GPU; "tiny" is for a dry run on a CPU. Accumulation keeps the gradients of the models
(GroupNorm, the mean over texts of each text's mean loss), so the micro batch can be searched under a fixed global
batch. With `free=True` the batch size is free, as batch-size finders need it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autofit

PADDING = -100


@dataclass(frozen=True)
class Model:
    """A benchmark model.

    Attributes:
        make: makes the workload at a scale, with a fixed or free global batch.
        strategies: strategies whose knobs span the grid, few enough for a complete grid.
        memory: memory budget by scale, tight enough that the largest plans do not fit.
    """

    make: Callable[..., autofit.Workload]
    strategies: tuple[str, ...]
    memory: dict[str, str]

    @property
    def target(self) -> str:
        """The target for `autofit tune`."""
        return f"{__name__}:{self.make.__name__}"


class Texts(Dataset[Tensor]):
    """Token ids. Most texts are short and a few are long, unless all have the maximum length."""

    def __init__(self, vocabulary: int, longest: int, vary: bool, count: int = 8192) -> None:
        generator = torch.Generator().manual_seed(0)
        shares = torch.rand(count, generator=generator) ** 3 if vary else torch.ones(count)
        self.lengths = (longest // 8 + (longest - longest // 8) * shares).long()
        self.starts = torch.randint(vocabulary, (count,), generator=generator)
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return (self.starts[index] + 7 * torch.arange(int(self.lengths[index]))) % self.vocabulary


def collate(texts: list[Tensor]) -> dict[str, Tensor]:
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    ids = pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, PADDING), "attention_mask": mask}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(attended))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class GPT(nn.Module):
    def __init__(self, vocabulary: int, longest: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        mask = attention_mask[:, 1:]
        return {"loss": ((each.view_as(mask) * mask).sum(1) / mask.sum(1)).mean(), "logits": logits}


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


@cache  # batch-size finders make a new workload for each trial
def _images(side: int, count: int = 4096) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, side, side, generator=generator)
    return TensorDataset(images, torch.randint(10, (count,), generator=generator))


@cache
def _rows(count: int = 32768) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 256, generator=generator), torch.randn(count, 1, generator=generator))


def gpt(scale: str = "full", free: bool = False, vary: bool = True) -> autofit.Workload:
    """A GPT of 34 million parameters on up to 512 tokens."""
    torch.manual_seed(0)
    full = scale == "full"
    vocabulary, longest, micro, total = (8192, 512, 8, 64) if full else (64, 32, 2, 16)
    model = GPT(vocabulary, longest, *((512, 8, 8) if full else (32, 2, 2)))
    loader = DataLoader(Texts(vocabulary, longest, vary), batch_size=micro, shuffle=True, collate_fn=collate)
    return autofit.Workload(model, loader, global_batch_size=None if free else total, max_grad_norm=1.0)


def convnet(scale: str = "full", free: bool = False) -> autofit.Workload:
    """A residual network of 16 convolution pairs on images of 64 x 64."""
    torch.manual_seed(0)
    full = scale == "full"
    width, depth, side, micro, total = (64, 4, 64, 32, 256) if full else (8, 1, 8, 4, 16)
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(*(Residual(a if i == 0 else b, b, 2 if i == 0 and a != b else 1) for i in range(depth)))
        for a, b in pairwise(widths)
    ]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), *stages, *head)
    loader = DataLoader(_images(side), batch_size=micro, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return autofit.Workload(
        model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, global_batch_size=None if free else total
    )


def mlp(scale: str = "full", free: bool = False) -> autofit.Workload:
    """An MLP of 8 layers of 2048 on rows of 256 numbers."""
    torch.manual_seed(0)
    full = scale == "full"
    width, depth, micro, total = (2048, 8, 256, 4096) if full else (32, 3, 8, 32)
    inner = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(nn.Linear(256, width), nn.GELU(), *inner, nn.Linear(width, 1))
    loader = DataLoader(_rows(), batch_size=micro, shuffle=True)
    return autofit.Workload(model, loader, loss_fn=F.mse_loss, global_batch_size=None if free else total)


MODELS = {
    "gpt": Model(gpt, ("batching", "precision", "checkpointing"), {"full": "8GiB", "tiny": "2MiB"}),
    "convnet": Model(convnet, ("batching", "precision", "memory_format"), {"full": "8GiB", "tiny": "2MiB"}),
    "mlp": Model(mlp, ("batching", "precision", "optimizer_implementation"), {"full": "1800MiB", "tiny": "2MiB"}),
}
