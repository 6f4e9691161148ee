"""The promise "no trace": what the user passed in comes back bit-identical, and so does the process.

Followed is all that they reach (state_walk.py). Some of it is only watched: a loader's running iterator and a loader's
own `state_dict()`, which cannot be rewound; and what cannot be followed or is too large to be copied (unguarded.py),
which `Guard.caveats` names beforehand, and `Guard.changed` afterwards where a change was seen.
"""

import hashlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

import torch
from torch import nn

from autofit.core.errors import DevicePoisoned, RestoreError
from autofit.core.units import format_names
from autofit.guard.bindings import BindingPiece, NamesPiece
from autofit.guard.digest import feed
from autofit.guard.object_state import (
    ClassPiece,
    MappingPiece,
    Piece,
    SequencePiece,
    SetPiece,
    TensorPiece,
    ValuePiece,
)
from autofit.guard.process_state import ProcessState
from autofit.guard.random_state import global_rngs
from autofit.guard.state_walk import Walk
from autofit.guard.tensor_state import OpaqueTensor, StorageBytes, keep
from autofit.guard.value_state import ArrayPiece, SamplesPiece
from autofit.workloads.workload import Workload

_CONTAINERS = (MappingPiece, SequencePiece, SetPiece, BindingPiece, NamesPiece)
_VALUES = (ValuePiece, ArrayPiece, SamplesPiece)


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
        functions: Mapping[str, object] | None = None,
    ) -> None:
        """Takes the snapshot; changes nothing and iterates nothing.

        Args:
            model: its parameters, buffers, gradients, modes, hooks and attributes are guarded.
            optimizer: its state, groups, defaults and hooks are guarded.
            loader: its data set, collate function, generators, samplers and attributes are guarded.
            extras: further objects by name: modules (EMA, losses), schedulers, scalers, generators, anything
                with attributes or `state_dict`/`load_state_dict`.
            functions: what the search calls, by name: all that its code and closures reach is guarded.
        """
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._extras, self._functions = extras, functions
        # First, because asking a user's object for its state may draw a random number.
        self._process = ProcessState()
        walk = Walk(model, optimizer, loader, extras, functions)
        self._left = False
        self._pieces, self._held = walk.unguarded.saved(walk.pieces), {id(piece) for piece in walk.held}
        self._watched = walk.unguarded.saved(walk.unguarded.pieces)
        self.caveats, self.changed = walk.unguarded.caveats, tuple[str, ...]()
        self._bytes = keep(walk.tensors())

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Takes the snapshot of all that a workload holds."""
        optimizer, recipe = workload.optimizer, None
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer, recipe = None, optimizer
        functions = {
            "step_fn": workload.step_fn,
            "loss_fn": workload.loss_fn,
            "optimizer": recipe,
            "worst_case": workload.worst_case,
        }
        extras = {f"extras[{index}]": extra for index, extra in enumerate(workload.extras)}
        return cls(workload.model, optimizer, loader=workload.loader, extras=extras, functions=functions)

    @property
    def digest(self) -> str:
        """The sha256 of the present state of everything guarded, process-wide flags left out."""
        return digest_of(self._model, self._optimizer, self._loader, self._extras, self._functions)

    def restore(self) -> None:
        """Puts everything back in place; may be called any number of times, at the cost of one comparison.

        An interrupt (SIGINT) that arrives meanwhile is delivered afterwards.

        Raises:
            RestoreError: a part could not be written. All other parts were.
        """
        self._restore(self._pieces)

    def restore_trained(self) -> None:
        """Puts back what a step trains and the process, but leaves what the user's functions and helpers keep.

        What is then still on the device is what the user's code keeps from step to step. `restore` has to follow.

        Raises:
            RestoreError: as `restore`.
        """
        self._restore([piece for piece in self._pieces if id(piece) not in self._held])

    def differences(self) -> list[str]:
        """Returns the names of all that is not bit-identical to the snapshot, such as "model.0.weight"."""
        return self._differences(self._bytes)

    def _differences(self, stored: Sequence[StorageBytes | OpaqueTensor]) -> list[str]:
        names = [name for kept in stored for name in kept.differences()]
        names += [name for piece in self._pieces for name in piece.differences()]
        return list(dict.fromkeys([*names, *self._process.differences()]))

    @property
    def backstop(self) -> "Backstop":
        """A second context to hold around the `with` block of the guard: see `Backstop`."""
        return Backstop(self._leave)

    def __enter__(self) -> Self:
        self._left = False
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
        leave_surely(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        """Does what leaving takes, unless that was done since the guard was entered."""
        if self._left:
            return
        if isinstance(error, DevicePoisoned):
            with _interrupt_deferred():
                lost = [name for name, _ in self._put_back(self._pieces)]
            if lost:
                error.add_note(str(_restore_error(lost)))
                self._left = True
                return
        self._restore_and_verify(error)

    def _restore(self, pieces: Sequence[Piece]) -> None:
        with _interrupt_deferred():
            failures = self._put_back(pieces)
        if failures:
            raise _restore_error([name for name, _ in failures]) from failures[0][1]

    def _restore_and_verify(self, error: BaseException | None) -> None:
        with _interrupt_deferred():
            failures = self._put_back(self._pieces)
            left = self._differences([kept for kept in self._bytes if not kept.untouched])
            self.changed = tuple(name for piece in self._watched for name in piece.differences())
            self._left = True
        if self.changed and error is not None:
            error.add_note(f"changed while tuning, and could not be put back: {', '.join(self.changed)}")
        if left or failures:
            cause = error if error is not None else failures[0][1] if failures else None
            raise _restore_error(left or [name for name, _ in failures]) from cause

    def _put_back(self, pieces: Sequence[Piece]) -> list[tuple[str, Exception]]:
        """Writes the pieces, all bytes and the process, and returns the parts that failed with their errors.

        Order: the containers give the tensors back; then come the values, some of which the user's own code writes;
        the tensors get their bytes; then comes what hangs on a tensor's layout; last the process, whose random
        generators the former may have used.
        """
        parts: list[tuple[str, Callable[[], object]]] = [
            *((piece.name, piece.restore) for piece in pieces if isinstance(piece, _CONTAINERS)),
            *((piece.name, piece.restore) for piece in pieces if isinstance(piece, _VALUES)),
            *((kept.name, kept.restore) for kept in self._bytes),
            *((piece.name, piece.restore) for piece in pieces if isinstance(piece, (TensorPiece, ClassPiece))),
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


def leave_surely(leave: Callable[[BaseException | None], object], error: BaseException | None) -> None:
    """Calls `leave` with the exception in flight, and once more where a Ctrl-C cut it short.

    The interrupt may come before `leave` defers interrupts, and nothing else would put the state back. Calling it again
    does nothing where it was done.

    Raises:
        KeyboardInterrupt: as it came.
    """
    try:
        leave(error)
    except KeyboardInterrupt:
        leave(error)
        raise


class Backstop:
    """Makes good what an interrupt keeps an inner context from doing on exit.

    Ctrl-C may arrive when an `__exit__` is called and has not yet run its first line: then it runs not at all. Held
    around it in the same `with` statement, this context does the work instead. One interrupt cannot hit both.
    """

    def __init__(self, leave: Callable[[BaseException | None], object]) -> None:
        """Makes the context; `leave` does the work unless it was done, and gets the exception in flight."""
        self._do_leave = leave

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave_surely(self._do_leave, error)


def digest_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    loader: object = None,
    extras: Mapping[str, object] | None = None,
    functions: Mapping[str, object] | None = None,
) -> str:
    """Returns one sha256, as hexadecimal, of the present state of the objects and the global generators.

    Covers what `Guard` covers, process-wide flags left out, and changes nothing. Objects of unknown classes
    count by their type; the digest is for comparing the same objects before and after, within one process.
    """
    sink = hashlib.sha256()
    for piece in [*Walk(model, optimizer, loader, extras, functions).pieces, *global_rngs()]:
        feed(sink, piece.name)
        feed(sink, piece.content())
    return sink.hexdigest()


def _restore_error(names: list[str]) -> RestoreError:
    return RestoreError(
        f"Found {format_names(names, 10)} changed after tuning; expected it bit-identical to before. "
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
