"""A residual MLP on a table of numbers, given only a model and a loader. The batch size is free.

    python examples/tabular.py

Points of interest:
  * No loss is passed: for float targets of the output's shape, autofit uses F.mse_loss and says so ("note: ...").
  * No global batch is passed, so the batch size is searched too: here up to 2,048 rows, without `max_global_batch_size`
    up to a fiftieth of the table. It grows until larger batches no longer pay or no longer fit, and a note says that
    the learning rate should be checked. Pass `global_batch_size` to keep the batch.
  * MEMORY rules out the largest batches. Their memory is estimated from smaller runs, so they are not run.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "32MiB"


class Block(nn.Module):
    """A two-layer perceptron with a shortcut around it."""

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
    """Returns an MLP with `depth` residual blocks and one output."""
    blocks = (Block(width) for _ in range(depth))
    return nn.Sequential(nn.Linear(columns, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 1))


def make_table(rows: int = 16384, columns: int = 32) -> TensorDataset:
    """Returns a table and targets that depend on pairs of its columns, with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    y = (x[:, ::2] * x[:, 1::2]).sum(1, keepdim=True) / 4
    return TensorDataset(x, y + 0.1 * torch.randn(rows, 1, generator=generator))


def make_workload() -> autofit.Workload:
    """Returns the workload with a conservative baseline: batches of 32 rows."""
    torch.manual_seed(0)
    table = make_table()
    model = make_model(columns=table.tensors[0].shape[1])
    loader = DataLoader(table, batch_size=32, shuffle=True)
    return autofit.Workload(model, loader, max_global_batch_size=2048)


def main() -> None:
    """Tunes, prints the result, and trains with the plan."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        max_global_batch_size=w.max_global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator, omit this and move the model there first
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
