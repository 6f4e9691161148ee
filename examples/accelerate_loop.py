"""A training loop of Hugging Face Accelerate under a plan: precision, batch, accumulation and loader workers.

    pip install '.[accelerate]'
    python examples/accelerate_loop.py

Points of interest:
  * Tuning comes first, because a process can have only one precision of Accelerate.
  * `autofit export --to accelerate` writes the same plan as a file for `accelerate launch --config_file`.
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autofit
from autofit.integrations.accelerate import accelerator_arguments, loader_arguments

PLAN = "autofit_accelerate_plan.yaml"


def make_model() -> nn.Module:
    """Returns a small network over 32 numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 5))


def make_dataset() -> Dataset[Any]:
    """Returns random samples whose class is the place of their largest number."""
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :5].argmax(1))


def main() -> None:
    """Tunes, saves the plan, and trains with Accelerate under it."""
    model, dataset = make_model(), make_dataset()
    fit = autofit.tune(
        model,
        DataLoader(dataset, batch_size=64, shuffle=True),
        loss_fn=nn.functional.cross_entropy,
        global_batch_size=64,
        memory_budget="1GiB",
        time_budget="60s",
        strategies=["batching", "precision"],  # what Accelerate can express
        device="cpu",
    )
    print(fit)
    fit.save(PLAN)

    accelerator = Accelerator(**accelerator_arguments(PLAN))
    loader = DataLoader(dataset, shuffle=True, **loader_arguments(PLAN))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss: Tensor = torch.zeros(())
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print(f"after one epoch: loss {loss:.3f}")


if __name__ == "__main__":
    main()
