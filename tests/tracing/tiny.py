"""Small models for the tests of tracing."""

import torch
from torch import nn
from torch.nn import functional as F

from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.workload import Workload


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.mix = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.mix(self.norm(x)).split(width, 2)
        query, key, value = (p.view(batch, time, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, time, width)), self.dropout, self.training)
        output: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return output


class Gpt(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, words: int = 96, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, 2, dropout) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        output: torch.Tensor = self.head(x).transpose(1, 2)
        return output


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x + self.norm(self.conv(x)))


class Cnn(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Residual(width), Residual(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return output


def words(size: int, time: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(size * time).reshape(size, time) % 96
    return ids, ids


def images(size: int, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(size, 3, side, side), torch.arange(size) % 10


def workload(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], **more: object) -> tuple[Workload, LossRule]:
    made = Workload(model, [batch], loss_fn=F.cross_entropy, **more)  # type: ignore[arg-type]
    return made, resolve_loss(model, batch, loss_fn=F.cross_entropy)


class Asking(Gpt):
    """Looks at a value in its forward pass."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = super().forward(ids)
        if self.question == "finite":
            assert torch.isfinite(x).all()
        elif self.question == "length":
            x = x[..., : int(ids.max().item()) + 1]
        elif self.question == "numpy":
            x = x + x.detach().numpy().mean()
        return x
