"""The examples as kinds, with the techniques that searches choose for them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset

from tests.examples.loading import load
from tests.exporters.kinds import SAMPLES, Kind


def own_loss(model: nn.Module, batch: Any) -> Tensor:
    """Returns the loss that the model computes itself."""
    loss: Tensor = model(**batch).loss
    return loss


def squares(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def classify(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def example(name: str, loss: Any, **more: Any) -> Kind:
    """Returns an example on its first samples."""
    made = load(name).make_workload()
    return Kind(
        model=lambda: load(name).make_workload().model,
        samples=lambda: Subset(made.loader.dataset, range(SAMPLES)),
        loss=loss,
        collate=made.loader.collate_fn,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
        **more,
    )


def kinds() -> dict[str, Kind]:
    """Returns the kinds by the names of the examples."""
    return {
        "gpt": example(
            "gpt",
            own_loss,
            blocks=lambda model: model.blocks,
            plan={"precision": "bf16", "checkpointed_blocks": 2, "optimizer_implementation": "foreach"},
            settings={"max_grad_norm": "1.0"},
        ),
        "convnet": example(
            "convnet", classify, plan={"memory_format": "channels_last", "optimizer_implementation": "fused"}
        ),
        "huggingface": example("huggingface", own_loss, plan={"precision": "bf16", "checkpointed_blocks": 2}),
        "tabular": example("tabular", squares, plan={"optimizer_implementation": "fused"}),
    }
