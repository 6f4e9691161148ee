"""A small residual network with BatchNorm on images: accumulation is measured, found to differ, and left out.

    python examples/convnet.py

What to look at:
  * BatchNorm's statistics are those of a micro batch, so two halves of a batch do not add up to the whole. autofit
    measures that on this model ("left out: accumulation ...") and keeps all 64 images together.
  * What is left to choose does not touch the batch: the layout of images in memory, the number format, the
    optimizer's implementation, recomputing blocks.
  * The running statistics of BatchNorm change in every forward pass. After tuning they are what they were.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "96MiB"
CLASSES = 10


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm2.weight)  # each block begins as its shortcut: steadier gradients at the start
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the feature maps after this block, [images, outputs, height / stride, width / stride]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """Returns `blocks` blocks, the first of which halves the image where `stride` is 2."""
    first = Block(inputs, outputs, stride)
    return nn.Sequential(first, *(Block(outputs, outputs) for _ in range(blocks - 1)))


def make_model() -> nn.Module:
    """Returns a residual network of three stages."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    stages = stage(16, 16, 2, stride=1), stage(16, 32, 2, stride=2), stage(32, 64, 2, stride=2)
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def make_images(count: int = 1024, size: int = 32) -> TensorDataset:
    """Returns noise around one colour for each class, and the classes."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.randn(CLASSES, 3, 1, 1, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(colours[labels] + torch.randn(count, 3, size, size, generator=generator), labels)


def make_workload() -> autofit.Workload:
    """Returns what is trained: 64 images per step, which is to stay so."""
    torch.manual_seed(0)
    model = make_model()
    loader = DataLoader(make_images(), batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return autofit.Workload(model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, global_batch_size=64)


def main() -> None:
    """Tunes, says what was found, and trains with it."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        loss_fn=w.loss_fn,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator leave this out, and move the model there first
    )
    print(fit)
    with fit.prepare(w.model, w.loader, w.optimizer) as step:  # leaving takes the plan off the model again
        for number, batch in enumerate(step.loader):
            loss = step(batch)
            print(f"step {number + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
