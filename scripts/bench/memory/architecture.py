"""Records of the benchmark of memory estimates: an architecture, its batches and its configurations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofit.core.plan import KnobValue

Batch = tuple[Tensor, Tensor] | dict[str, Tensor]
WORDS = 8192
CLASSES = 100


@dataclass(frozen=True)
class Configuration:
    """One way to train an architecture.

    Attributes:
        side: length of the texts, height and width of the images, or edge of the volumes.
        knobs: values of the plan's knobs; `checkpointed_blocks` may be "half" or "all".
        optimizer: "adamw" or "sgd".
        most_gib: approximate peak at the largest size, in GiB.
    """

    side: int
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    optimizer: str = "adamw"
    most_gib: int = 24

    @property
    def name(self) -> str:
        """The configuration as text."""
        values = (f"{name}={value}" for name, value in self.knobs.items())
        return " ".join([str(self.side), *values, *(["sgd"] if self.optimizer == "sgd" else [])])


@dataclass(frozen=True)
class Architecture:
    """A model and its batches.

    Attributes:
        family: kind of model.
        make: makes the model on the host.
        batch: makes a batch on the host from a size and the configuration's side.
        loss_fn: loss function; None if the model computes its loss.
        unit: all sizes are multiples of this number of samples.
    """

    name: str
    family: str
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    configurations: tuple[Configuration, ...]
    loss_fn: Callable[..., Tensor] | None = None
    unit: int = 1


def words(size: int, length: int) -> tuple[Tensor, Tensor]:
    ids = torch.arange(size * length).reshape(size, length) % WORDS
    return ids, ids


def labelled(size: int, length: int) -> dict[str, Tensor]:
    ids, labels = words(size, length)
    return {"input_ids": ids, "labels": labels}


def images(size: int, side: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(size, 3, side, side), torch.arange(size) % CLASSES


def pictures(size: int, side: int) -> tuple[Tensor, Tensor]:
    """Returns images with images as targets."""
    return torch.zeros(size, 3, side, side), torch.zeros(size, 3, side, side)


def rows(size: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(size, width), torch.arange(size) % CLASSES


def of_words(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def c(side: int, most_gib: int = 24, optimizer: str = "adamw", **knobs: KnobValue) -> Configuration:
    """Returns a configuration. The name is short so that a configuration fits on a line."""
    return Configuration(side, knobs, optimizer, most_gib)
