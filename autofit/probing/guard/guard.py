"""The promise "no trace": what the user passed in comes back bit-identical, and so does the process.

What can be put back, and what is only watched, because it cannot be rewound: a loader's running iterator, a
loader's own `state_dict()`, and the first and last batch of a loader that is a list. An iterator or generator
passed as a loader shows nothing of its position; only refusing it keeps the promise.
"""

import hashlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

import torch
from torch import nn

from autofit.core.errors import DevicePoisoned, RestoreError
from autofit.probing.guard.digest import feed
from autofit.probing.guard.object_state import MappingPiece, SequencePiece, SetPiece
from autofit.probing.guard.process_state import ProcessState, global_rngs
from autofit.probing.guard.state_walk import Walk
from autofit.probing.guard.tensor_state import keep

_CONTAINERS = (MappingPiece, SequencePiece, SetPiece)


class Guard:
    """Takes a snapshot of what the user passed in and of the process, and puts it back bit-identically.

    Used around everything that tunes, in the tuning process. `restore` is called after each probe; leaving
    the `with` block restores and then verifies, on every exit. The bytes are kept in host memory; the tensors
    themselves, gradients included, are kept by reference, so that the same objects come back.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        loader: object = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Takes the snapshot; changes nothing and iterates nothing.

        Args:
            model: its parameters, buffers, gradients, modes, hooks and attributes are guarded.
            optimizer: its state, groups, defaults and hooks are guarded.
            loader: its generators, samplers and attributes are guarded; its data set is not.
            extras: further objects by name: modules (EMA, losses), schedulers, scalers, generators, anything
                with attributes or `state_dict`/`load_state_dict`.
        """
        self._model, self._optimizer, self._loader, self._extras = model, optimizer, loader, extras
        # First, because asking a user's object for its state may draw a random number.
        self._process = ProcessState()
        walk = Walk(model, optimizer, loader, extras)
        self._pieces = walk.pieces
        for piece in self._pieces:
            piece.save()
        self._bytes = keep(walk.tensors())

    @property
    def digest(self) -> str:
        """The sha256 of the present state of everything guarded, process-wide flags left out."""
        return digest_of(self._model, self._optimizer, self._loader, self._extras)

    def restore(self) -> None:
        """Puts everything back in place; may be called any number of times.

        An interrupt (SIGINT) that arrives meanwhile is delivered afterwards.

        Raises:
            RestoreError: a part could not be written. All other parts were.
        """
        with _interrupt_deferred():
            failures = self._put_back()
        if failures:
            raise _restore_error([name for name, _ in failures]) from failures[0][1]

    def differences(self) -> list[str]:
        """Returns the names of all that is not bit-identical to the snapshot, such as "model.0.weight"."""
        names = [name for kept in self._bytes for name in kept.differences()]
        names += [name for piece in self._pieces for name in piece.differences()]
        return list(dict.fromkeys([*names, *self._process.differences()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Puts everything back and verifies it.

        A poisoned device can be neither written nor read: what is on it is lost with this process, and the error that
        says so gets a note of what that is.

        Raises:
            RestoreError: something still differs; chained to the exception in flight, if there is one.
        """
        try:
            if isinstance(error, DevicePoisoned):
                with _interrupt_deferred():
                    lost = [name for name, _ in self._put_back()]
                if lost:
                    error.add_note(str(_restore_error(lost)))
                    return
            self._restore_and_verify(error)
        except KeyboardInterrupt:
            # It may have come before interrupts were deferred; nothing else would put the state back.
            self._restore_and_verify(error)
            raise

    def _restore_and_verify(self, error: BaseException | None) -> None:
        with _interrupt_deferred():
            failures = self._put_back()
            left = self.differences()
        if left or failures:
            cause = error if error is not None else failures[0][1] if failures else None
            raise _restore_error(left or [name for name, _ in failures]) from cause

    def _put_back(self) -> list[tuple[str, Exception]]:
        """Writes every part, and returns those that failed with their errors.

        Order: the containers give the tensors back, the tensors get their bytes, then comes what hangs on a
        tensor's layout; last the process, whose random generators the former may have used.
        """
        parts: list[tuple[str, Callable[[], object]]] = [
            *((piece.name, piece.restore) for piece in self._pieces if isinstance(piece, _CONTAINERS)),
            *((kept.name, kept.restore) for kept in self._bytes),
            *((piece.name, piece.restore) for piece in self._pieces if not isinstance(piece, _CONTAINERS)),
            # Casts of a probe's weights would otherwise serve the user's open autocast block.
            ("autocast cache", torch.clear_autocast_cache),
            *self._process.parts(),
        ]
        failures = []
        for name, write in parts:
            try:
                write()
            except Exception as error:  # noqa: BLE001  # one part must not keep the others from returning
                failures.append((name, error))
        return failures


def digest_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    loader: object = None,
    extras: Mapping[str, object] | None = None,
) -> str:
    """Returns one sha256, as hexadecimal, of the present state of the objects and the global generators.

    Covers what `Guard` covers, process-wide flags left out, and changes nothing. Objects of unknown classes
    count by their type; the digest is for comparing the same objects before and after, within one process.
    """
    sink = hashlib.sha256()
    for piece in [*Walk(model, optimizer, loader, extras).pieces, *global_rngs()]:
        feed(sink, piece.name)
        feed(sink, piece.content())
    return sink.hexdigest()


def _restore_error(names: list[str]) -> RestoreError:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return RestoreError(
        f"Found {shown} changed after tuning; expected it bit-identical to before. "
        "Rebuild these objects, or reload them from a checkpoint, before training on."
    )


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Holds SIGINT back for the length of the block, then delivers it to the handler installed by then."""
    # Only the main thread can set handlers; None is a handler from outside Python, which cannot be put back.
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    arrived: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        # The block itself may have put the user's handler back.
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, previous)
        if arrived:
            signal.raise_signal(signal.SIGINT)
