"""What an architecture of the benchmark of memory estimates is: a model, its batches, its configurations."""

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
        side: length of the texts, or height and width of the images.
        knobs: values of the plan; `checkpointed_blocks` may be "half" or "all".
        optimizer: "adamw" or "sgd".
        most_gib: about the peak at the largest size.
    """

    side: int
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    optimizer: str = "adamw"
    most_gib: int = 24

    @property
    def name(self) -> str:
        """The configuration in words."""
        values = (f"{name}={value}" for name, value in self.knobs.items())
        return " ".join([str(self.side), *values, *(["sgd"] if self.optimizer == "sgd" else [])])


@dataclass(frozen=True)
class Architecture:
    """A model and its batches.

    Attributes:
        family: what kind of model it is.
        make: makes the model on the host.
        batch: makes a batch on the host from a size and the configuration's side.
        loss_fn: None where the model computes its loss.
        unit: samples that sizes are multiples of.
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
    """Images that are their own target."""
    return torch.zeros(size, 3, side, side), torch.zeros(size, 3, side, side)


def rows(size: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(size, width), torch.arange(size) % CLASSES


def of_words(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def c(side: int, most_gib: int = 24, optimizer: str = "adamw", **knobs: KnobValue) -> Configuration:
    """Returns a configuration; short, so that one fits a line."""
    return Configuration(side, knobs, optimizer, most_gib)
