"""Ways to train: losses, updates and samplers of many kinds, written as they should be."""

import copy
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from scripts.bench import workloads
from scripts.bench.doctor.data import (
    CLASSES,
    SAMPLES,
    SIDE,
    Given,
    classified,
    cnn,
    labels,
    loader_of,
    mlp,
    own_loss,
    random_rows,
)


class Jacobian(nn.Module):
    """A loss with `torch.func`: the derivative of the network by its input should be small."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(128, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        slopes = torch.func.vmap(torch.func.jacrev(lambda row: self.inner(row).squeeze(-1)))(x)
        found: Tensor = F.mse_loss(self.inner(x).squeeze(-1), y) + slopes.square().mean()
        return found


def functional() -> Given:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        found: Tensor = model(batch[0], batch[1].float())
        return found

    return {"model": Jacobian(), "loader": loader_of(random_rows(64), labels()), "step_fn": loss}


def meta_learning() -> Given:
    """MAML: the gradient of a step of adaptation."""

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        points, labels = batch
        weights: dict[str, Tensor] = dict(model.named_parameters())

        def error(values: dict[str, Tensor], rows: slice) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, values, points[rows]), labels[rows])

        slopes = torch.autograd.grad(error(weights, slice(0, 16)), tuple(weights.values()), create_graph=True)
        adapted = {name: value - 0.1 * slope for (name, value), slope in zip(weights.items(), slopes, strict=True)}
        return error(adapted, slice(16, 32))

    return {"model": mlp(), "loader": loader_of(random_rows(64), labels()), "step_fn": loss}


def adversarial(penalty: bool) -> Given:
    """A GAN; with a gradient penalty, the discriminator is that of WGAN-GP. It is frozen while the generator trains."""
    models = nn.ModuleDict({"generator": mlp(256, 64), "discriminator": mlp(256, 1)})
    optimizers = {name: torch.optim.Adam(part.parameters(), lr=1e-3) for name, part in models.items()}

    def update(models: nn.ModuleDict, optimizers: dict[str, torch.optim.Optimizer], batch: list[Tensor]) -> Tensor:
        real, generator, discriminator = batch[0], models["generator"], models["discriminator"]
        with torch.no_grad():
            fake = generator(torch.randn_like(real))
        error = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
        if penalty:
            mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
            (slope,) = torch.autograd.grad(discriminator(mixed).sum(), mixed, create_graph=True)
            error = error + 10 * (slope.norm(dim=1) - 1).square().mean()
        optimizers["discriminator"].zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimizers["discriminator"].step()
        discriminator.requires_grad_(False)
        loss = F.softplus(-discriminator(generator(torch.randn_like(real)))).mean()
        optimizers["generator"].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers["generator"].step()
        discriminator.requires_grad_(True)
        return loss.detach() + error.detach()

    return {"model": models, "loader": loader_of(random_rows(64)), "update_fn": update, "optimizer": optimizers}


def _teacher(student: nn.Module) -> nn.Module:
    return copy.deepcopy(student).requires_grad_(False).eval()


def moving_teacher() -> Given:
    """A teacher that is the moving average of the student, as in BYOL."""
    student = mlp(256, 64)
    models = nn.ModuleDict({"student": student, "teacher": _teacher(student)})
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)

    def update(models: nn.ModuleDict, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> Tensor:
        with torch.no_grad():
            taught = models["teacher"](batch[0])
        loss = F.mse_loss(models["student"](batch[0]), taught)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            pairs = zip(models["teacher"].parameters(), models["student"].parameters(), strict=True)
            for kept, new in pairs:
                kept.lerp_(new, 0.01)
        return loss.detach()

    return {"model": models, "loader": loader_of(random_rows(64)), "update_fn": update, "optimizer": optimizer}


def distilled() -> Given:
    """Logits and features of a frozen teacher. A hook takes the features, and they are forgotten after each step."""
    models = nn.ModuleDict({"student": mlp(128), "teacher": _teacher(mlp(256))})

    def loss(models: Any, batch: list[Tensor]) -> Tensor:
        seen = list[Tensor]()
        hook = models["teacher"][3].register_forward_hook(lambda module, args, out: seen.append(out))
        with torch.no_grad():
            taught = models["teacher"](batch[0]).log_softmax(1)
        hook.remove()
        found = models["student"](batch[0])
        return F.kl_div(found.log_softmax(1), taught, log_target=True) + 0 * seen.pop().mean()

    return {"model": models, "loader": loader_of(random_rows(64)), "step_fn": loss}


def adapted() -> Given:
    """Low-rank adapters on a frozen body."""

    class Adapter(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down, self.up = nn.Linear(inner.in_features, 8, bias=False), nn.Linear(8, inner.out_features)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x) + self.up(self.down(x))
            return out

    body = mlp()
    layers = [Adapter(part) if isinstance(part, nn.Linear) else part for part in body]
    optimizer = lambda params: torch.optim.AdamW([each for each in params if each.requires_grad], lr=1e-3)  # noqa: E731
    return classified(nn.Sequential(*layers), optimizer=optimizer)


def contrastive() -> Given:
    """Negatives in the batch, two views of each sample."""

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        first, second = (F.normalize(model(batch[0] + 0.1 * torch.randn_like(batch[0])), dim=1) for _ in range(2))
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))

    return {"model": mlp(256, 64), "loader": loader_of(random_rows(64), size=64), "step_fn": loss}


class Queue(nn.Module):
    """Momentum contrast: keys of earlier batches in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = mlp(128, 32)
        self.key: nn.Module = _teacher(self.query)
        self.queue: Tensor
        self.register_buffer("queue", F.normalize(torch.randn(512, 32), dim=1))
        self.place = 0

    def forward(self, x: Tensor) -> Tensor:
        query = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            key = F.normalize(self.key(x), dim=1)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().T], 1)
        with torch.no_grad():
            self.queue[self.place : self.place + len(key)] = key
            self.place = (self.place + len(key)) % len(self.queue)
        return F.cross_entropy(scores / 0.1, torch.zeros(len(x), dtype=torch.long))


def momentum_contrast() -> Given:
    return {"model": Queue(), "loader": loader_of(random_rows(64)), "step_fn": own_loss}


def triplet() -> Given:
    """m samples of each class in a batch, by a sampler."""

    class PerClass(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            for first in range(0, SAMPLES - 32, 32):
                yield [first + place for place in range(32)]

        def __len__(self) -> int:
            return SAMPLES // 32 - 1

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        points = model(batch[0])
        apart, same = torch.cdist(points, points), batch[1][:, None] == batch[1][None]
        return F.relu(apart.where(same, 0).amax(1) - apart.masked_fill(same, torch.inf).amin(1) + 0.2).mean()

    loader = DataLoader(TensorDataset(random_rows(64), labels()), batch_sampler=PerClass())
    return {"model": mlp(256, 64), "loader": loader, "step_fn": loss}


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(256, 128), mlp(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        found = self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        total: Tensor = F.mse_loss(found, x) - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return total


def variational() -> Given:
    return {"model": Vae(), "loader": loader_of(random_rows(64)), "step_fn": own_loss}


def diffusion() -> Given:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        clean = batch[0]
        noise, share = torch.randn_like(clean), torch.rand(len(clean), 1, 1, 1)
        return F.mse_loss(model(share.sqrt() * clean + (1 - share).sqrt() * noise), noise)

    return {**workloads.unet(), "loss_fn": None, "step_fn": loss}


def physics() -> Given:
    """A network whose derivatives by its input follow an equation."""

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        x = batch[0].clone().requires_grad_()
        y = model(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        total: Tensor = (second + y).square().mean()
        return total

    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    return {"model": model, "loader": loader_of(random_rows(2), size=128), "step_fn": loss}


def segmented() -> Given:
    labels = torch.randint(0, CLASSES, (SAMPLES, 48, 48))
    labels[:, ::7] = 255
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1),
        nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, CLASSES, 1),
    )  # fmt: skip
    loss = nn.CrossEntropyLoss(weight=torch.linspace(1, 5, CLASSES), ignore_index=255)
    return {"model": model, "loader": loader_of(random_rows(3, 48, 48), labels, size=8), "loss_fn": loss}


class Heads(nn.Module):
    """Auxiliary heads, as in Inception."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(256, 64, 2), mlp(256, 64, 2)
        self.heads = nn.ModuleList(nn.Linear(64, CLASSES) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.first(x)
        return self.heads[0](first), self.heads[1](self.second(first))


def auxiliary() -> Given:
    def loss(found: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return 0.4 * F.cross_entropy(found[0], labels) + F.cross_entropy(found[1], labels)

    return classified(Heads()) | {"loss_fn": loss}


class Criterion(nn.Module):
    """ArcFace: weights in the criterion."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = mlp(256, 64), nn.Parameter(torch.randn(CLASSES, 64))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        angles = F.normalize(self.body(x)) @ F.normalize(self.centres).T
        return F.cross_entropy(16 * (angles - 0.3 * F.one_hot(labels, CLASSES)), labels)


def arcface() -> Given:
    return {"model": Criterion(), "loader": loader_of(random_rows(64), labels()), "step_fn": own_loss}


def two_losses() -> Given:
    """Two backward passes through one body; the first keeps the graph, and the second needs it."""

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> Tensor:
        optimizer.zero_grad()
        found = model(batch[0])
        first = F.cross_entropy(found, batch[1])
        first.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        second = 0.1 * found.square().mean()
        second.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total: Tensor = first.detach() + second.detach()
        return total

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loader": loader_of(random_rows(64), labels()), "update_fn": update, "optimizer": optimizer}


def sharpness_aware() -> Given:
    """SAM: the gradients of the first pass move the weights, those of the second are the update."""

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> Tensor:
        F.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            moves = [0.01 * each.grad for each in model.parameters() if each.grad is not None]
            for each, move in zip(model.parameters(), moves, strict=True):
                each.add_(move)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for each, move in zip(model.parameters(), moves, strict=True):
                each.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"model": model, "loader": loader_of(random_rows(64), labels()), "update_fn": update, "optimizer": optimizer}


def policy() -> Given:
    """Actor and critic with one optimizer; returns are detached."""

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = mlp(256, 64), nn.Linear(64, 4), nn.Linear(64, 1)

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(states)
            return self.actor(x), self.critic(x).squeeze(-1)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        scores, values = model(batch[0])
        chosen = torch.distributions.Categorical(logits=scores)
        actions = chosen.sample()  # type: ignore[no-untyped-call]
        gains = batch[1].float() - values.detach()
        chances: Tensor = chosen.log_prob(actions)  # type: ignore[no-untyped-call]
        found: Tensor = F.mse_loss(values, batch[1].float()) - (chances * gains).mean()
        return found

    return {"model": Actor(), "loader": loader_of(random_rows(64), labels()), "step_fn": loss}


def detected() -> Given:
    """Boxes, of which each image has another number, in a list of dicts."""

    def together(samples: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        return torch.stack([image for image, _ in samples]), [boxes for _, boxes in samples]

    def loss(model: nn.Module, batch: tuple[Tensor, list[dict[str, Tensor]]]) -> Tensor:
        found, losses = model(batch[0]), []
        for one, boxes in zip(found, batch[1], strict=True):
            losses.append(F.smooth_l1_loss(one[: len(boxes["boxes"]) * 4], boxes["boxes"].flatten()))
        return torch.stack(losses).mean()

    model = cnn()
    model[-1] = nn.Linear(32, 40)
    samples = [(torch.randn(3, SIDE, SIDE), {"boxes": torch.rand(1 + n % 9, 4)}) for n in range(SAMPLES)]
    loader: DataLoader[Any] = DataLoader(samples, batch_size=16, collate_fn=together)  # type: ignore[arg-type]  # a list is a data set
    return {"model": model, "loader": loader, "step_fn": loss}


class Pairs(Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.full((64,), place / SAMPLES), torch.ones(64), torch.tensor(place % 2)


def siamese() -> Given:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cosine_embedding_loss(model(batch[0]), model(batch[1]), 2 * batch[2] - 1)

    return {"model": mlp(256, 64), "loader": DataLoader(Pairs(), batch_size=32), "step_fn": loss}


def energy() -> Given:
    """An energy, whose samples are found by its gradient by the input. The gradients of weights are not made there."""

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> Tensor:
        model.requires_grad_(False)
        x = torch.randn_like(batch[0])
        for _ in range(5):
            x = x.detach().requires_grad_()
            x = x - 0.1 * torch.autograd.grad(model(x).sum(), x)[0]
        model.requires_grad_(True)
        loss = model(batch[0]).mean() - model(x.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total: Tensor = loss.detach()
        return total

    model = mlp(256, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return {"model": model, "loader": loader_of(random_rows(64)), "update_fn": update, "optimizer": optimizer}


METHODS: MappingProxyType[str, Callable[[], Given]] = MappingProxyType(
    {
        "gan": lambda: adversarial(False),
        "gradient penalty": lambda: adversarial(True),
        "moving teacher": moving_teacher,
        "distilled": distilled,
        "adapted": adapted,
        "functional": functional,
        "meta-learning": meta_learning,
        "contrastive": contrastive,
        "momentum contrast": momentum_contrast,
        "triplet": triplet,
        "variational": variational,
        "diffusion": diffusion,
        "physics": physics,
        "segmented": segmented,
        "auxiliary": auxiliary,
        "arcface": arcface,
        "two losses": two_losses,
        "sharpness-aware": sharpness_aware,
        "policy": policy,
        "detected": detected,
        "siamese": siamese,
        "energy": energy,
    }
)
"""Workloads by name."""
