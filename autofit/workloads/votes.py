"""Votes of ranks that train together, on the host: whether a step has failed, and whether a pass has ended."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import torch
from torch import distributed
from torch.utils.data import IterableDataset

from autofit.core.errors import RanksLost
from autofit.torch_internals import time_limit
from autofit.workloads.step import Ranks


@dataclass(frozen=True, slots=True)
class Votes:
    """Votes of all ranks of a training on the host, so that nobody waits for a device.

    Attributes:
        group: their process group for tensors on the host.
        number: the number of this rank.
        count: the number of ranks.
    """

    group: Any
    number: int
    count: int

    @classmethod
    def of(cls, ranks: Ranks) -> Self:
        """Returns the votes of ranks. All of them must make them. A vote ends with an error when a step would."""
        limit = time_limit(ranks.group, ranks.mesh.device_type)
        return cls(distributed.new_group(backend="gloo", timeout=limit), ranks.number, ranks.count)

    def most(self, *mine: int) -> list[int]:
        """Returns the largest of each number that the ranks give.

        Raises:
            RanksLost: a rank has ended, or does not vote within the limit.
        """
        found = torch.tensor(mine, device="cpu")
        below = [rank for rank in (2 * self.number + 1, 2 * self.number + 2) if rank < self.count]
        try:  # up and down a tree, which takes a third of the time of `all_reduce`
            for rank in below:
                theirs = torch.empty_like(found)
                self.group.recv([theirs], rank, 0).wait()
                torch.maximum(found, theirs, out=found)
            if self.number > 0:
                self.group.send([found], (self.number - 1) // 2, 0).wait()
                self.group.recv([found], (self.number - 1) // 2, 0).wait()
            for rank in below:
                self.group.send([found], rank, 0).wait()
        except RuntimeError as error:
            line = str(error).strip().partition("\n")[0]
            raise RanksLost(
                f"found no vote of another rank ({line}); expected one of each of {self.count} ranks in each step. "
                "See what the others printed, and start again from a checkpoint."
            ) from None
        return [int(each) for each in found.tolist()]

    def failed(self, rank: int) -> RanksLost:
        """Returns the error of a rank that has not failed itself."""
        return RanksLost(
            f"found an error on rank {rank}, which ends the step on all {self.count} ranks; expected none. See what "
            "that rank printed."
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Ends with an error on all ranks if it does on one.

        Raises:
            RanksLost: another rank has failed.
        """
        try:
            yield
        except BaseException:
            self.most(self.number + 1)
            raise
        if rank := self.most(0)[0]:
            raise self.failed(rank - 1)


@dataclass(slots=True)
class EndingTogether:
    """A loader of a rank's own part of the samples, whose passes end on all ranks when the first has no further batch.

    Otherwise the ranks with more batches would wait for the others in their next step.

    Attributes:
        loader: yields micro batches.
        votes: of all ranks. Each iterates over such a loader.
    """

    loader: Any
    votes: Votes
    _warned: bool = False

    def __iter__(self) -> Iterator[Any]:
        count = None if isinstance(getattr(self.loader, "dataset", None), IterableDataset) else self._size()
        unknown, least = self.votes.most(int(count is None), -(count or 0))
        if not unknown:  # all ranks know how many there are
            yield from islice(self.loader, -least)
            self._warn(count is not None and count > -least)
            return
        batches = iter(self.loader)
        while True:
            batch = next(batches, self)
            (ended,) = self.votes.most(int(batch is self))
            if ended:
                self._warn(batch is not self)
                return
            yield batch

    def __len__(self) -> int:
        return len(self.loader)

    def _size(self) -> int | None:
        with suppress(TypeError):
            return len(self.loader)
        return None

    def _warn(self, left: bool) -> None:
        if left and not self._warned:
            self._warned = True
            warnings.warn(
                "the loader of this rank has more batches than that of another, and each pass ends with the shortest. "
                "Give all ranks as many, or a DataLoader of all samples, which is then divided.",
                stacklevel=3,
            )
