"""Parts of the cases of the sweep: shapes, and operators that take more than a line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensor = torch.Tensor
Run = Callable[[Tensor], Any]

TOKENS, ROWS, IMAGES, VOLUMES = (32, 512, 512), (16384, 512), (32, 64, 64, 64), (8, 32, 16, 32, 32)
SERIES, HEADS, SQUARES = (32, 256, 1024), (16, 8, 512, 64), (4096, 48, 48)


@dataclass(frozen=True)
class Case:
    """An operator to try.

    Attributes:
        make: makes the operator, a module or a function, which runs on the result of the product.
        shape: shape of the result of the product.
    """

    make: Callable[[], Run]
    shape: tuple[int, ...]


def ids(x: Tensor, most: int, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=x.device) % most


def attended(x: Tensor, groups: int = 1, **options: Any) -> Tensor:
    """Attends with queries, keys and values from one product, with `groups` queries for each key if that is above 1."""
    key = x[:, ::groups] if groups > 1 else x
    return F.scaled_dot_product_attention(x, key, key, enable_gqa=groups > 1, **options)


def forced(backend: SDPBackend, x: Tensor, **options: Any) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(x, x, x, **options)


def packed(x: Tensor, heads: int, **options: Any) -> Tensor:
    """Self-attention as models write it: the heads are views of the result of one product."""
    q = x.view(*x.shape[:2], heads, -1).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, q, q, **options)
    return out.transpose(1, 2).reshape(x.shape)


def autocast(x: Tensor, enabled: bool) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
        return (x if enabled else x.float()) @ x.new_ones(x.shape[-1], 512, dtype=torch.float32)


def branch(x: Tensor, on_cuda: bool) -> Tensor:
    """Takes another branch on CUDA, as code with custom kernels does."""
    return F.relu(x) if on_cuda else (x.exp().sin().cos() + x.tanh()).sigmoid()


def straight_through(x: Tensor) -> Tensor:
    soft = x.softmax(-1)
    hard = F.one_hot(soft.argmax(-1), x.shape[-1]).to(soft.dtype)
    return hard + soft - soft.detach()


def scattered(x: Tensor, reduce: str) -> Tensor:
    return x.scatter_reduce(1, ids(x, x.shape[1], *x.shape), x, reduce)


def put(x: Tensor, accumulate: bool) -> Tensor:
    places = ids(x, 1000, x.shape[0])
    return torch.zeros(1000, x.shape[1], dtype=x.dtype, device=x.device).index_put((places,), x, accumulate)


def biased(x: Tensor, table: Tensor) -> Tensor:
    """Adds a bias for each head and pair of tokens, looked up by the distance of the two, as in Swin and T5."""
    at = torch.arange(x.shape[1], device=x.device)
    places = at[:, None] - at + x.shape[1] - 1
    return x + table[places.view(-1)].view(*places.shape, -1).permute(2, 0, 1).sum(0)


def masked(x: Tensor) -> Tensor:
    return x.masked_fill(torch.ones(x.shape, dtype=torch.bool, device=x.device).triu(), float("-inf"))


def turned(x: Tensor) -> Tensor:
    theta = x.mean((2, 3))[:, :6].view(-1, 2, 3).float()
    return F.grid_sample(x.float(), F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def target(x: Tensor) -> Tensor:
    return x.detach().sigmoid()


def classes(x: Tensor) -> Tensor:
    return ids(x, x.shape[1], x.shape[0], *x.shape[2:])


class Experts(nn.Module):
    """Routes each token to one of eight products; each product takes a fixed number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(512, 8), nn.Parameter(torch.zeros(8, 512, 512))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        place = F.one_hot(chosen, 8).sum(1).cumsum(0) - 1
        kept = (place < 4096) & (place >= 0)
        sent = torch.zeros(8, 4096, 512, dtype=x.dtype, device=x.device)
        for expert in range(8):
            sent[expert, place[:, expert].clamp(0, 4095)] = x * kept[:, expert, None].to(x.dtype)
        done = torch.bmm(sent, self.up)
        parts = [done[each, place[:, each].clamp(0, 4095)] * scores[:, :1] for each in range(8)]
        return torch.stack(parts).sum(0)


class With(nn.Module):
    """A function with weights, as a module."""

    def __init__(self, run: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self._run = run

    def forward(self, x: Tensor) -> Any:
        return self._run(x, *self.weights)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(512, 256, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        out: torch.Tensor = self.layer(x)[0]
        return out


class Cells(nn.Module):
    def __init__(self, kind: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.cell = kind(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in range(8):
            state = self.cell(x[:, step], state)
        out: Tensor = state[0] if isinstance(state, tuple) else state
        return out


def laid_out(module: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    """Returns the module with its weights in a memory format; torch's annotations do not know this form of `to`."""
    out: nn.Module = cast(Any, module).to(memory_format=memory_format)
    return out


def functions(shape: tuple[int, ...], table: dict[str, Run]) -> dict[str, Case]:
    return {name: Case(lambda run=run: run, shape) for name, run in table.items()}  # type: ignore[misc]  # mypy takes the default for a parameter


def modules(shape: tuple[int, ...], table: dict[str, Callable[[], Run]]) -> dict[str, Case]:
    return {name: Case(make, shape) for name, make in table.items()}
