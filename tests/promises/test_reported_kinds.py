"""Kinds of training that users of other tools reported: tuned as they are, put back to the bit, trained as before.

Each is tuned with a micro batch that is pinned. The plan then trains as the user's own loop on the whole batches does,
or the search refuses it and says why.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import autofit
from autofit.core.errors import WorkloadError
from autofit.workloads.batch_store import StepBatch

STEPS = 3
SAMPLES = 192


def seeded(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def vectors(width: int = 8, classes: int = 4) -> TensorDataset:
    generator = seeded()
    targets = torch.randint(classes, (SAMPLES,), generator=generator)
    return TensorDataset(torch.randn(SAMPLES, width, generator=generator), targets)


def mlp(width: int = 8, outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, outputs))


def joined(parts: list[Any]) -> Any:
    """Returns one batch of tuples, dicts or tensors."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    return [joined(list(column)) for column in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Kind:
    """One kind of training.

    Attributes:
        model, loader, step: what the user has.
        micro: the micro batch size that is pinned.
        total: the global batch size; None leaves it free.
        refused: words of the refusal; "" if the plan trains as the user's loop does.
        says: words of a caveat.
        join: joins micro batches.
    """

    model: Callable[[], nn.Module]
    loader: Callable[[], Any]
    step: Callable[[Any, Any], Tensor]
    micro: int
    total: int | None = 16
    refused: str = ""
    says: str = ""
    join: Callable[[list[Any]], Any] = joined


def adapted(model: nn.Module, batch: Any) -> Tensor:
    """MAML: each task takes a step of its own, through which the outer gradient goes."""
    losses = []
    for x, y in zip(batch[0], batch[1], strict=True):
        weights = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, weights, (x[:4],)), y[:4])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
        losses.append(F.mse_loss(functional_call(model, moved, (x[4:],)), y[4:]))
    return torch.stack(losses).mean()


def tasks() -> TensorDataset:
    x = torch.rand(SAMPLES, 8, 1, generator=seeded()) * 6 - 3
    return TensorDataset(x, torch.sin(x + torch.rand(SAMPLES, 1, 1, generator=seeded(1))))


def contrasted(model: nn.Module, batch: Any) -> Tensor:
    """All other samples of the batch are negatives."""
    one, other = F.normalize(model(batch[0]), dim=1), F.normalize(model(batch[0] + 0.1), dim=1)
    return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))


class PerClass(Sampler[list[int]]):
    """Batches of two samples of each class."""

    def __init__(self, targets: Tensor, batch_size: int) -> None:
        self.targets, self.batch_size = targets, batch_size

    def __len__(self) -> int:
        return len(self.targets) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            places = ((self.targets == kind).nonzero()[:, 0] for kind in range(self.batch_size // 2))
            yield [int(at) for found in places for at in found[torch.randperm(len(found))[:2]]]


def triplets(model: nn.Module, batch: Any) -> Tensor:
    """The farthest sample of the same class and the nearest of another one."""
    outputs = F.normalize(model(batch[0]), dim=1)
    distances, alike = torch.cdist(outputs, outputs), batch[1][:, None] == batch[1]
    far, near = (distances - 9 * ~alike).amax(1), (distances + 9 * alike).amin(1)
    return F.relu(far - near + 0.5).mean()


class Quantised(nn.Linear):
    """Rounds its inputs to a scale that it follows, as in quantisation-aware training."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.lerp_(x.abs().amax() / 8, 0.5)
        rounded = torch.fake_quantize_per_tensor_affine(x, float(self.scale), 0, -8, 7)
        return super().forward(rounded)


class Speech(NamedTuple):
    """Padded recordings, time first, with the targets of all in one row."""

    frames: Tensor
    lengths: Tensor
    targets: Tensor
    target_lengths: Tensor


class Recordings(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        generator = seeded(at)
        return torch.randn(12 + at % 9, 5, generator=generator), torch.randint(1, 6, (2 + at % 3,), generator=generator)


def speech(rows: list[tuple[Tensor, Tensor]]) -> Speech:
    frames, targets = zip(*rows, strict=True)
    lengths = (torch.tensor([len(each) for each in column]) for column in (frames, targets))
    return Speech(pad_sequence(list(frames)), next(lengths), torch.cat(targets), next(lengths))


def joined_speech(parts: list[Speech]) -> Speech:
    rows = []
    for part in parts:
        targets = part.targets.split(part.target_lengths.tolist())
        rows += [(part.frames[:n, at], targets[at]) for at, n in enumerate(part.lengths.tolist())]
    return speech(rows)


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.GRU(5, 16, bidirectional=True), nn.Linear(32, 6)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(frames, lengths, enforce_sorted=False)
        output: Tensor = self.head(pad_packed_sequence(self.rnn(packed)[0])[0]).log_softmax(-1)
        return output


def transcribed(model: nn.Module, batch: Speech) -> Tensor:
    return F.ctc_loss(model(batch.frames, batch.lengths), batch.targets, batch.lengths, batch.target_lengths)


class Banked(nn.Module):
    """Compares with a bank that has a row for each sample of the data set, and renews the rows of the batch."""

    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(8, 6)
        self.register_buffer("bank", F.normalize(torch.randn(SAMPLES, 6), dim=1))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        outputs = F.normalize(self.encoder(x), dim=1)
        loss = F.cross_entropy(outputs @ self.bank.clone().T, at)
        with torch.no_grad():
            self.bank[at] = outputs
        return loss


class ByTokens(Sampler[list[int]]):
    """Batches of about as many frames, and so of different numbers of samples."""

    def __init__(self) -> None:
        order = sorted(range(SAMPLES), key=lambda at: at % 9)
        self.lists = [order[start : start + 6 + start // 10 % 5] for start in range(0, SAMPLES, 10)]

    def __len__(self) -> int:
        return len(self.lists)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.lists)


def hooked() -> nn.Module:
    """Clamps gradients by hooks, so that those of micro batches do not add up."""
    model = mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.005, 0.005))
    return model


def clipped(model: nn.Module, batch: Any) -> Tensor:
    """Clamps the weights first, as a critic's."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.2, 0.2)
    return classified(model, batch)


def classified(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def adversarial(model: nn.Module, batch: Any) -> Tensor:
    """Labelled samples of one domain and twice as many of another, told apart behind a reversed gradient."""
    (x, y), (other,) = batch
    outputs = model(torch.cat([x, other]))
    domains = torch.cat([torch.zeros(len(x)), torch.ones(len(other))])
    told = F.binary_cross_entropy_with_logits(Reversed.apply(outputs)[:, 3], domains)  # type: ignore[no-untyped-call]
    return F.cross_entropy(outputs[: len(x)], y) + told


class Zipped:
    """Two loaders that are read side by side."""

    def __init__(self) -> None:
        more = TensorDataset(torch.randn(2 * SAMPLES, 8, generator=seeded(1)))
        self.loaders = DataLoader(vectors(), batch_size=16), DataLoader(more, batch_size=32)

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.loaders, strict=True)


def residual(model: nn.Module, x: Tensor) -> Tensor:
    """A differential equation, in double precision: u'' = -sin."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return (bend + torch.sin(x)).square().mean()


KINDS = {
    "a task in each sample": Kind(lambda: mlp(1, 1), lambda: DataLoader(tasks(), 4), adapted, 2, total=4),
    "negatives in the batch": Kind(
        mlp,
        lambda: DataLoader(vectors(), 16),
        contrasted,
        8,
        refused="samples of a batch interact",
    ),
    "triplets of a sampler by class": Kind(
        mlp,
        lambda: DataLoader(vectors(), batch_sampler=PerClass(vectors().tensors[1], 8)),
        triplets,
        8,
        total=8,
    ),
    "quantised with a scale that follows": Kind(
        Quantised, lambda: DataLoader(vectors(), 16), classified, 8, refused="changes the gradient of this model"
    ),
    "packed sequences": Kind(
        Recogniser, lambda: DataLoader(Recordings(), 8, collate_fn=speech), transcribed, 4, join=joined_speech
    ),
    "a bank of all samples": Kind(
        Banked,
        lambda: DataLoader(TensorDataset(vectors().tensors[0], torch.arange(SAMPLES)), 16),
        lambda model, batch: model(*batch),
        16,
    ),
    "batches of as many tokens": Kind(
        Recogniser,
        lambda: DataLoader(Recordings(), batch_sampler=ByTokens(), collate_fn=speech),
        transcribed,
        8,
        total=None,
        says="they stay as they are, and the plan states their mean",
        join=joined_speech,
    ),
    "gradients clamped by hooks": Kind(
        hooked, lambda: DataLoader(vectors(), 16), classified, 4, refused="changes the gradient of this model"
    ),
    "weights clamped by the step": Kind(mlp, lambda: DataLoader(vectors(), 8), clipped, 16, total=16),
    "two loaders side by side": Kind(
        mlp,
        Zipped,
        adversarial,
        16,
        total=None,
        says="the batch size stays 16: the batches hold",
    ),
    "a differential equation": Kind(
        lambda: mlp(1, 1).double(), lambda: [torch.rand(32, 1, dtype=torch.float64)], residual, 16, total=32
    ),
}


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Returns a copy of what a search must leave as it is."""
    gradients = [parameter.grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    return copy.deepcopy([model.state_dict(), optimizer.state_dict(), gradients, modes, torch.get_rng_state()])


def same(one: Any, other: Any) -> bool:
    """Returns whether two states are identical."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:one pass over this loader")
def test_it_is_put_back_and_trains_as_the_users_loop_or_is_refused_with_the_reason(name: str) -> None:
    kind = KINDS[name]
    model, loader = kind.model(), kind.loader()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    before = state(model, optimizer)

    def tuned() -> autofit.Fit:
        return autofit.tune(
            model, loader, step_fn=kind.step, optimizer=optimizer, global_batch_size=kind.total,
            strategies=["batching"], pinned={"micro_batch_size": kind.micro}, study=":memory:", progress=False,
        )  # fmt: skip

    if kind.refused:
        with pytest.raises(WorkloadError, match=kind.refused):
            tuned()
        assert same(state(model, optimizer), before)
        return
    fit = tuned()
    assert same(state(model, optimizer), before)
    assert any(kind.says in caveat for caveat in fit.caveats)
    users, theirs = copy.deepcopy(model), []
    own = torch.optim.SGD(users.parameters(), 0.1, momentum=0.9)
    step = fit.prepare(model, loader, optimizer)
    for batch, _ in zip(step.loader, range(STEPS), strict=False):
        parts = list(batch.parts) if isinstance(batch, StepBatch) else [batch]
        own.zero_grad()
        loss = kind.step(users, copy.deepcopy(kind.join(parts) if len(parts) > 1 else parts[0]))
        loss.backward()  # type: ignore[no-untyped-call]
        own.step()
        theirs.append((float(step(batch)), loss.item()))
    assert theirs
    for ours, users_loss in theirs:
        assert ours == pytest.approx(users_loss, rel=1e-4)
    for found, expected in zip(model.parameters(), users.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
