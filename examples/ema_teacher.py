"""A student that learns from a few labels and from its teacher, a moving average of its weights.

    python examples/ema_teacher.py

Points of interest:
  * The teacher is updated after the optimizer's step, so `update_fn` does the whole step. With a `step_fn`, autofit
    could cut the batch into micro batches, and the teacher would move several times per step.
  * Student and teacher are one `nn.ModuleDict`. The teacher stays in evaluation mode, as it was passed.
  * The batch is free: no global batch is passed, so larger batches are tried too, up to `max_global_batch_size`.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "32MiB"
FEATURES, CLASSES, KEPT = 32, 8, 0.99
UNLABELLED = -100  # what F.cross_entropy ignores


class Block(nn.Module):
    """A two-layer perceptron with a shortcut around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features after this block, [rows, width]."""
        out: Tensor = x + self.out(self.layers(x))
        return out


def make_models(width: int = 128, depth: int = 3) -> nn.ModuleDict:
    """Returns a student, and a teacher that starts as its copy and is not trained by gradients."""
    blocks = (Block(width) for _ in range(depth))
    student = nn.Sequential(nn.Linear(FEATURES, width), *blocks, nn.Linear(width, CLASSES))
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    return nn.ModuleDict({"student": student, "teacher": teacher})


def make_table(rows: int = 4096) -> TensorDataset:
    """Returns points around the centres of their classes. One of eight has its label."""
    generator = torch.Generator().manual_seed(0)
    centres, labels = torch.randn(CLASSES, FEATURES, generator=generator), torch.arange(rows) % CLASSES
    points = centres[labels] + torch.randn(rows, FEATURES, generator=generator)
    labelled = torch.rand(rows, generator=generator) < 1 / 8
    return TensorDataset(points, labels.where(labelled, torch.tensor(UNLABELLED)))


def update(models: nn.ModuleDict, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> Tensor:
    """Trains the student, and moves the teacher towards it. Returns the loss."""
    (points, labels), student, teacher = batch, models["student"], models["teacher"]
    with torch.no_grad():
        taught = teacher(points + 0.1 * torch.randn_like(points)).softmax(1)
    found = student(points + 0.1 * torch.randn_like(points))
    known = (labels != UNLABELLED).sum().clamp(min=1)
    loss = F.cross_entropy(found, labels, reduction="sum") / known + F.mse_loss(found.softmax(1), taught)
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.lerp_(new, 1 - KEPT)
    return loss


def make_workload() -> autofit.Workload:
    """Returns the workload with a conservative baseline: batches of 32 rows."""
    torch.manual_seed(0)
    models = make_models()
    optimizer = torch.optim.AdamW(models["student"].parameters(), lr=1e-3)
    loader = DataLoader(make_table(), batch_size=32, shuffle=True)
    return autofit.Workload(models, loader, update_fn=update, optimizer=optimizer, max_global_batch_size=512)


def main() -> None:
    """Tunes, prints the result, and trains with the plan."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        update_fn=w.update_fn,
        optimizer=w.optimizer,
        max_global_batch_size=w.max_global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator, omit this and move the models there first
    )
    print(fit)
    with fit.prepare(w.model, w.loader) as step:
        for number, batch in zip(range(60), step.loader, strict=False):
            loss = step(batch)
            if number % 5 == 0:
                print(f"step {number + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
