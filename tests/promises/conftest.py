"""One real search, which the tests of the promises look at from all sides."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.search.request import Event
from tests.digests import digest_of
from tests.workloads import gans

GLOBAL_BATCH = 24


@dataclass
class Tuned:
    """A search that has ended.

    Attributes:
        fit: what `tune` returned.
        events: what it told on the way.
        model: the user's model.
        loader: the user's loader.
        optimizer: the user's optimizer, with state.
        digests: of all that was handed over, before and after.
        study: where the trials are.
    """

    model: nn.Module
    loader: DataLoader[Any]
    optimizer: torch.optim.Optimizer
    study: Path
    fit: autofit.Fit = field(init=False, repr=False)
    events: list[Event] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def tune(self, **changes: Any) -> autofit.Fit:
        """Tunes this workload as a user would."""
        arguments: dict[str, Any] = {
            "loss_fn": F.cross_entropy, "optimizer": self.optimizer, "global_batch_size": GLOBAL_BATCH,
            "memory_budget": "256MiB", "device": "cpu", "study": self.study, "progress": self.events.append,
        }  # fmt: skip
        return autofit.tune(self.model, self.loader, **arguments | changes)

    def digest(self) -> str:
        """Returns a fingerprint of all that is handed over, the random streams included."""
        return digest_of(self.model, self.optimizer, self.loader)


def workload(study: Path) -> Tuned:
    """Returns a small classifier with dropout that has trained for a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    data = TensorDataset(torch.randn(240, 32), torch.randint(0, 4, (240,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    F.cross_entropy(model(data.tensors[0][:8]), data.tensors[1][:8]).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    optimizer.step()
    return Tuned(model, loader, optimizer, study)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A whole search over every technique that applies on the CPU."""
    made = workload(tmp_path_factory.mktemp("promises") / "study.db")
    made.digests.append(made.digest())
    made.fit = made.tune()
    made.digests.append(made.digest())
    return made


@pytest.fixture
def untuned(tmp_path: Path) -> Tuned:
    """The same workload before a search."""
    return workload(tmp_path / "study.db")


@dataclass
class TunedGan:
    """Two models with two optimizers and a step of their own, before a search."""

    models: nn.ModuleDict
    optimizers: dict[str, torch.optim.Optimizer]
    loader: DataLoader[Any]
    study: Path
    fit: autofit.Fit = field(init=False, repr=False)
    events: list[Event] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def tune(self, **changes: Any) -> autofit.Fit:
        """Tunes this workload as a user would."""
        arguments: dict[str, Any] = {
            "update_fn": gans.update, "optimizer": self.optimizers, "global_batch_size": 8, "numerics": "exact",
            "memory_budget": "256MiB", "device": "cpu", "study": self.study, "progress": self.events.append,
        }  # fmt: skip
        return autofit.tune(self.models, self.loader, **arguments | changes)

    def digest(self) -> str:
        """Returns a fingerprint of all that is handed over, the random streams included."""
        return digest_of(self.models, self.optimizers, self.loader, functions={"update_fn": gans.update})


def gan_workload(study: Path) -> TunedGan:
    """Returns a GAN that has trained for a step: its optimizers have state and its models have gradients."""
    models, loader = gans.models(), gans.loader()
    optimizers = gans.optimizers(models)
    gans.update(models, optimizers, next(iter(loader)))
    return TunedGan(models, optimizers, loader, study)


@pytest.fixture(scope="session")
def tuned_gan(tmp_path_factory: pytest.TempPathFactory) -> TunedGan:
    """A whole search over every technique that applies to a step of the user's on the CPU."""
    made = gan_workload(tmp_path_factory.mktemp("promises") / "gan.db")
    made.digests.append(made.digest())
    made.fit = made.tune()
    made.digests.append(made.digest())
    return made


@pytest.fixture
def gan(tmp_path: Path) -> TunedGan:
    """The same GAN before a search."""
    return gan_workload(tmp_path / "study.db")
