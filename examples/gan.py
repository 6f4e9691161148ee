"""A GAN: two models, two optimizers, and a step that is not one loss.

    python examples/gan.py

Points of interest:
  * `update_fn` does the whole step, as in a training loop without autofit. The models are one `nn.ModuleDict`, the
    optimizers a dict; both are restored bit-identically after tuning.
  * Techniques that would change the inside of the step, such as accumulation, are refused ("left out: ...").
  * The others are checked at each update: first the gradients of the discriminator are compared, then those of the
    generator, which depend on the update of the discriminator before.
  * `step(batch)` then runs `update_fn` under the plan and returns the sum of the losses that it returns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

MEMORY = "64MiB"
NOISE, SIZE = 16, 16


class Up(nn.Module):
    """Doubles height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, 4, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the feature maps, [images, outputs, 2 * height, 2 * width]."""
        return F.relu(self.norm(self.conv(x)))


class Down(nn.Module):
    """Halves height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 4, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the feature maps, [images, outputs, height / 2, width / 2]."""
        return F.leaky_relu(self.conv(x), 0.2)


def make_models() -> nn.ModuleDict:
    """Returns a generator of images from noise, and a discriminator with one output per image."""
    first = nn.Sequential(nn.Linear(NOISE, 32 * 4), nn.Unflatten(1, (32, 2, 2)))
    last = nn.Sequential(nn.Conv2d(16, 1, 3, padding=1), nn.Tanh())
    return nn.ModuleDict(
        {
            "generator": nn.Sequential(first, Up(32, 32), Up(32, 16), Up(16, 16), last),
            "discriminator": nn.Sequential(Down(1, 16), Down(16, 32), Down(32, 32), nn.Flatten(), nn.Linear(128, 1)),
        }
    )


def make_images(count: int = 1024) -> TensorDataset:
    """Returns images of one round spot each."""
    generator = torch.Generator().manual_seed(0)
    x, y = 4 + (SIZE - 8) * torch.rand(2, count, 1, 1, generator=generator)
    place = torch.arange(SIZE, dtype=torch.float32)
    return TensorDataset((2 * torch.exp(-((place - x) ** 2 + (place[:, None] - y) ** 2) / 8) - 1)[:, None])


def update(models: nn.ModuleDict, optimizers: dict[str, torch.optim.Optimizer], batch: list[Tensor]) -> Tensor:
    """Trains the discriminator, then the generator against it. Returns the sum of their losses."""
    generator, discriminator, real = models["generator"], models["discriminator"], batch[0]
    fake = generator(torch.randn(len(real), NOISE, device=real.device))

    loss: Tensor = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
    optimizers["discriminator"].zero_grad()
    torch.autograd.backward(loss)
    optimizers["discriminator"].step()

    fooled: Tensor = F.softplus(-discriminator(fake)).mean()
    optimizers["generator"].zero_grad()
    torch.autograd.backward(fooled)
    optimizers["generator"].step()
    return loss + fooled


def make_workload() -> autofit.Workload:
    """Returns the workload. The batch of 32 images is kept."""
    torch.manual_seed(0)
    models = make_models()
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999)) for name, model in models.items()
    }
    loader = DataLoader(make_images(), batch_size=32, shuffle=True, drop_last=True)
    return autofit.Workload(models, loader, update_fn=update, optimizer=optimizers, global_batch_size=32)


def main() -> None:
    """Tunes, prints the result, and trains with the plan."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        update_fn=w.update_fn,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
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
