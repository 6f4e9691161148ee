"""A small residual network with BatchNorm on images. Accumulation would change its gradient and is left out.

    python examples/convnet.py

Points of interest:
  * BatchNorm computes its statistics per micro batch, so the gradients of two halves of a batch do not add up to that
    of the whole. autofit measures this on the model before a plan that accumulates could become the answer ("left
    out: accumulation ..."), and keeps all 64 images together.
  * The remaining knobs do not change the batch: memory format, precision, optimizer implementation, checkpointing.
  * The running statistics of BatchNorm change in every forward pass. After tuning they have their original values.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "96MiB"
CLASSES = 10


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm2.weight)  # each block starts as its shortcut, which stabilises early gradients
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the feature maps after this block, [images, outputs, height / stride, width / stride]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """Returns `blocks` blocks. With a `stride` of 2, the first one halves height and width."""
    first = Block(inputs, outputs, stride)
    return nn.Sequential(first, *(Block(outputs, outputs) for _ in range(blocks - 1)))


def make_model() -> nn.Module:
    """Returns a residual network with three stages."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    stages = stage(16, 16, 2, stride=1), stage(16, 32, 2, stride=2), stage(32, 64, 2, stride=2)
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def make_images(count: int = 1024, size: int = 32) -> TensorDataset:
    """Returns images of one colour per class with noise, and their classes."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.randn(CLASSES, 3, 1, 1, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(colours[labels] + torch.randn(count, 3, size, size, generator=generator), labels)


def make_workload() -> autofit.Workload:
    """Returns the workload: 64 images per optimizer step, which must not change."""
    torch.manual_seed(0)
    model = make_model()
    loader = DataLoader(make_images(), batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return autofit.Workload(model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, global_batch_size=64)


def main() -> None:
    """Tunes, prints the result, and trains with the plan."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        loss_fn=w.loss_fn,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator, omit this and move the model there first
    )
    print(fit)
    with fit.prepare(w.model, w.loader, w.optimizer) as step:  # leaving removes the plan from the model
        for number, batch in enumerate(step.loader):
            loss = step(batch)
            print(f"step {number + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
