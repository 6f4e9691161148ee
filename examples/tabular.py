"""A residual MLP on a table of numbers: nothing but model and loader is needed, and the batch is free.

    python examples/tabular.py

What to look at:
  * No loss is given: float targets of the output's shape mean F.mse_loss, and the choice is named ("note: ...").
  * No global batch is given, so the batch itself is searched, here up to 2,048 rows; without `max_global_batch_size`
    up to a fiftieth of the table. It grows until larger ones no longer pay or no longer fit, and a note says that the
    learning rate wants another look. Give `global_batch_size` to keep the batch.
  * MEMORY forbids the largest batches. What cannot fit is estimated from what ran, and not run.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "32MiB"


class Block(nn.Module):
    """A two-layer perceptron around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features after this block, [rows, width]."""
        out: Tensor = x + self.layers(x)
        return out


def make_model(columns: int, width: int = 192, depth: int = 4) -> nn.Module:
    """Returns an MLP of `depth` residual blocks with one output."""
    blocks = (Block(width) for _ in range(depth))
    return nn.Sequential(nn.Linear(columns, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 1))


def make_table(rows: int = 16384, columns: int = 32) -> TensorDataset:
    """Returns a table and targets that depend on pairs of its columns, with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    y = (x[:, ::2] * x[:, 1::2]).sum(1, keepdim=True) / 4
    return TensorDataset(x, y + 0.1 * torch.randn(rows, 1, generator=generator))


def make_workload() -> autofit.Workload:
    """Returns what is trained, with a careful setting: 32 rows at a time."""
    torch.manual_seed(0)
    table = make_table()
    model = make_model(columns=table.tensors[0].shape[1])
    loader = DataLoader(table, batch_size=32, shuffle=True)
    return autofit.Workload(model, loader, max_global_batch_size=2048)


def main() -> None:
    """Tunes, says what was found, and trains with it."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        max_global_batch_size=w.max_global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator leave this out, and move the model there first
    )
    print(fit)
    step = fit.prepare(w.model, w.loader, torch.optim.AdamW(w.model.parameters(), lr=1e-3))
    for number, batch in zip(range(100), step.loader, strict=False):
        loss = step(batch)
        if number % 5 == 0:
            print(f"step {number + 1}: loss {loss:.3f}")
    step.close()


if __name__ == "__main__":
    main()
