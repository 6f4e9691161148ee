"""Recompute: the second run of a block in the backward pass, without changing the block's state again."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from autofit.core.wording import a_type
from autofit.strategies.selective_recompute import selective_contexts
from autofit.torch_internals import BatchNorm, FakeTensor, InstanceNorm, NormBase

_KEEPS_MOMENTUM = (BatchNorm.forward, nn.SyncBatchNorm.forward, InstanceNorm.forward)


class Recompute:
    """`torch.utils.checkpoint.checkpoint` for one block, in which the second run does not change buffers.

    For torch's batch and instance norms it suffices to set their momentum to 0. For other modules, the buffers that
    forward changes are found by observation: their values on entry are kept for the second run, which works on copies.
    The first call copies all buffers, later calls only those that have changed before.

    Args:
        block: the block.
        selective: whether results of expensive operators are kept. See `selective_recompute`.
    """

    def __init__(self, block: nn.Module, selective: bool = False) -> None:
        parts = list(block.modules())
        self.selective = selective
        self.label = type(block).__name__
        self.norms = [part for part in parts if isinstance(part, NormBase) and _keeps_momentum(part)]
        self.buffers = [(part, name) for part in parts if not _keeps_momentum(part) for name in part._buffers]
        self.changing: set[int] | None = None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)`, which is recomputed in the backward pass."""
        if torch.compiler.is_compiling():  # compiled code writes its buffers once anyway
            return self.compiled(function, *args)
        contexts = self._contexts if self.norms or self.buffers or self.selective else noop_context_fn
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts)

    def compiled(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns `function(*args, **kwargs)` while torch.compile traces it, which replays buffers and random state."""
        if self.selective:
            return checkpoint(function, *args, use_reentrant=False, context_fn=selective_contexts, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        kept: dict[int, torch.Tensor | None] = {}
        first, second = selective_contexts() if self.selective else (nullcontext(), nullcontext())
        return self._watched(kept, first), _OnKeptBuffers(self, kept, second)

    @contextmanager
    def _watched(self, kept: dict[int, torch.Tensor | None], first: AbstractContextManager[Any]) -> Iterator[None]:
        """Stores in `kept`, by position, the entry values of the buffers that change within the context `first`."""
        before = self._values()
        versions = [_version(value) for value in before]
        watched = range(len(before)) if self.changing is None else self.changing
        kept.update({position: _copy(before[position]) for position in watched})
        with first:
            yield
        for position, value in enumerate(self._values()):
            rewritten = value is not before[position] or _version(value) != versions[position]
            if rewritten and position not in kept:
                self._warn_late(position)
                kept[position] = before[position]
            elif self.changing is None and not rewritten and self._is_constant(position, value, kept[position]):
                del kept[position]
        self.changing = set(kept)

    def _is_constant(self, position: int, value: torch.Tensor | None, entry: torch.Tensor | None) -> bool:
        # Values are compared because batch_norm and writes through `.data` do not increment the version. A norm may be
        # frozen at first. Fake tensors have no values.
        if value is None or entry is None:
            return True
        if isinstance(value, FakeTensor):
            _compare(value, entry)
            return True
        return not isinstance(self.buffers[position][0], NormBase) and torch.equal(value, entry)

    def _values(self) -> list[torch.Tensor | None]:
        return [part._buffers[name] for part, name in self.buffers]

    def _warn_late(self, position: int) -> None:
        part, name = self.buffers[position]
        warnings.warn(
            f"the buffer {name} of {a_type(part)} in a checkpointed {self.label} changed for the first time "
            "in this step, so this step's gradient was computed with its new value. It is exact from the next step on.",
            stacklevel=2,
        )


class _OnKeptBuffers(AbstractContextManager[None]):
    """Replaces the buffers of a block by copies of those in `kept`, and restores them on exit.

    The second run is inside `second`. It is a class because a graph that is kept for a second backward pass enters the
    same context again.
    """

    def __init__(
        self, recompute: Recompute, kept: dict[int, torch.Tensor | None], second: AbstractContextManager[Any]
    ) -> None:
        self.recompute, self.kept, self.second = recompute, kept, second
        self.undo = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as undo:
            for position, value in self.kept.items():
                part, name = self.recompute.buffers[position]
                _swap(part, name, _copy(value), undo)
            for norm in self.recompute.norms:
                _swap(norm, "momentum", 0.0, undo)
                _swap(norm, "num_batches_tracked", _copy(norm.num_batches_tracked), undo)
            undo.enter_context(self.second)
            self.undo = undo.pop_all()

    def __exit__(self, *exception: object) -> None:
        self.undo.close()


def _keeps_momentum(part: nn.Module) -> bool:
    return type(part).forward in _KEEPS_MOMENTUM


def _version(value: torch.Tensor | None) -> int | None:
    return None if value is None else value._version


def _copy(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().clone()


def _compare(one: torch.Tensor, other: torch.Tensor) -> None:
    """Allocates, on fake tensors, the memory that `torch.equal` allocates."""
    different = torch.ne(one, other)
    different.any()


def _swap(owner: nn.Module, name: str, value: Any, undo: ExitStack) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
