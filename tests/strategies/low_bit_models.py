"""A small model with parameters that are quantized and others that are not, and how it is trained."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep

RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")
Make = Callable[[Any], torch.optim.Optimizer]

ADAMS: dict[str, Make] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-3),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "tensor lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(1e-2)),
}


def adamw(params: Any) -> torch.optim.Optimizer:
    return ADAMS["adamw"](params)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 64, generator=generator), torch.randint(0, 64, (32,), generator=generator)


def draft(make: Make = adamw) -> Draft:
    """Returns a draft of a model whose two weights have 16,384 elements each, and their biases 256 and 64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    weights, biases = ([p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
    groups = [{"params": weights}, {"params": biases, "lr": 5e-3}]
    return Draft(model, RULE, make(groups), torch.device("cpu"))


def plain(made: Draft) -> TrainStep:
    """Returns the step of a draft to which a strategy is applied elsewhere."""
    return prepare(Plan(), made, [])


def losses(step: TrainStep, count: int) -> list[float]:
    """Trains `count` steps and returns their losses."""
    return [float(step(batch())) for _ in range(count)]
