"""The promise "no trace": the user's objects and the process state are restored bit-identically.

All state that the user's objects reach is guarded (state_walk.py). Some of it is only watched: a loader's running
iterator and `state_dict()`, which cannot be rewound, and state that cannot be followed or is too large to copy
(unguarded.py). `Guard.caveats` names the latter before tuning, and `Guard.changed` names detected changes afterwards.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import nn

from autofit.core.errors import DevicePoisoned, RestoreError
from autofit.core.uninterrupted import uninterrupted
from autofit.core.units import format_names
from autofit.guard.object_state import Piece
from autofit.guard.process_state import process_pieces
from autofit.guard.state_walk import Optimizers, Walk
from autofit.guard.tensor_state import keep
from autofit.workloads.workload import Workload


class Guard:
    """Takes a snapshot of the user's objects and the process state, and restores it bit-identically.

    `restore` is called after each probe. Leaving the `with` block always restores and verifies. Bytes are kept in host
    memory. Tensors, gradients included, are kept by reference, so that the same objects are restored.

    Attributes:
        pieces: the state of the user's objects, other than the bytes of tensors.
        caveats: names of state that cannot be restored, before tuning.
        changed: names of such state that has changed, after leaving the `with` block.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | None = None,
        *,
        loader: object = None,
        extras: Mapping[str, object] | None = None,
        functions: Mapping[str, object] | None = None,
    ) -> None:
        """Takes the snapshot. Changes nothing and iterates nothing.

        Guarded are the parameters, buffers, gradients, modes, hooks and attributes of the model; the state, groups,
        defaults and hooks of the optimizer or several; the data set, collate function, generators, samplers and
        attributes of the loader. `extras` are further objects by name: modules (EMA, losses), schedulers, scalers,
        generators, anything with attributes or `state_dict`/`load_state_dict`. `functions` are those that the search
        calls, by name, with all state that their code and closures reach.
        """
        # First, because reading the state of a user's object may draw a random number.
        self._process = process_pieces()
        walk = Walk.of(model, optimizer, loader, extras, functions)
        self._left = False
        self.pieces, self._held = walk.unguarded.saved(walk.pieces), {id(piece) for piece in walk.held}
        self._watched = walk.unguarded.saved(walk.unguarded.pieces)
        self.caveats, self.changed = walk.unguarded.caveats, tuple[str, ...]()
        self._bytes = keep(walk.tensors())

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Takes the snapshot of everything that a workload holds."""
        given = workload.optimizer
        optimizer = given if isinstance(given, torch.optim.Optimizer | Mapping) else None
        functions = {name: getattr(workload, name) for name in ("update_fn", "step_fn", "loss_fn", "worst_case")}
        functions["optimizer"] = given if optimizer is None else None
        extras = {f"extras[{index}]": extra for index, extra in enumerate(workload.extras)}
        return cls(workload.model, optimizer, loader=workload.loader, extras=extras, functions=functions)

    def restore(self) -> None:
        """Restores everything in place. May be called any number of times, at the cost of one comparison.

        SIGINT and SIGTERM that arrive during the call are delivered afterwards. The watchdog leaves the guard alone by
        itself, except for a method of the user's that hangs.

        Raises:
            RestoreError: a part could not be restored. All other parts were.
        """
        self._restore(self.pieces)

    def restore_trained(self) -> None:
        """Restores what a step trains and the process, but not the state kept by the user's functions and helpers.

        The memory then in use on the device is what the user's code keeps between steps. `restore` must follow.

        Raises:
            RestoreError: as `restore`.
        """
        self._restore([piece for piece in self.pieces if id(piece) not in self._held])

    def differences(self) -> list[str]:
        """Returns the names of all state that is not bit-identical to the snapshot, such as "model.0.weight"."""
        return list(self.different_pieces())

    def different_pieces(self) -> dict[str, list[Piece]]:
        """Returns the same names, each with the pieces that hold what differs."""
        found: dict[str, list[Piece]] = {}
        for piece in (*self._bytes, *self.pieces, *self._process):
            for name in piece.differences():
                found.setdefault(name, []).append(piece)
        return found

    @property
    def backstop(self) -> "Backstop":
        """A second context manager to hold around the guard. See `Backstop`."""
        return Backstop(self._leave)

    def __enter__(self) -> Self:
        self._left = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restores everything and verifies it.

        A poisoned device can be neither written nor read, so its content is lost with this process. If `DevicePoisoned`
        is in flight, it gets a note that lists what was lost.

        Raises:
            RestoreError: state still differs, or cannot be read. It is chained to the exception in flight, if any.
        """
        leave_surely(self._leave, error)

    def _restore(self, pieces: Sequence[Piece]) -> None:
        with uninterrupted():
            failures = self._put_back(pieces)
        if failures:
            raise _restore_error([name for name, _ in failures]) from failures[0][1]

    def _leave(self, error: BaseException | None) -> None:
        """Restores and verifies once per entry of the guard."""
        if self._left:
            return
        with uninterrupted():
            failures = self._put_back(self.pieces)
            touched = [piece for piece in self._bytes if not piece.untouched]
            left, unread = _differences([*touched, *self.pieces, *self._process])
            changed, _ = _differences(self._watched)
            self.changed = tuple(changed)
            self._left = True
        failures += unread
        if self.changed and error is not None:
            error.add_note(f"changed while tuning, and could not be restored: {', '.join(self.changed)}")
        if not left and not failures:
            return
        lost = _restore_error(left or [name for name, _ in failures])
        if isinstance(error, DevicePoisoned):
            error.add_note(str(lost))
        else:
            raise lost from (failures[0][1] if error is None and failures else error)

    def _put_back(self, pieces: Sequence[Piece]) -> list[tuple[str, Exception]]:
        """Writes the pieces, all bytes and the process state. Returns the parts that failed, with their errors."""
        parts = sorted([*pieces, *self._bytes, *self._process], key=lambda piece: piece.order)
        failures = _done(parts, lambda piece: piece.restore())
        torch.clear_autocast_cache()  # the user's open autocast block would use cached casts of a probe's weights
        return failures


def _differences(pieces: Iterable[Piece]) -> tuple[list[str], list[tuple[str, Exception]]]:
    """Returns the names of what differs or cannot be read, and the parts that cannot be read, with their errors."""
    names: list[str] = []
    failures = _done(pieces, lambda piece: names.extend(piece.differences()))
    return list(dict.fromkeys([*names, *(name for name, _ in failures)])), failures


def _done(pieces: Iterable[Piece], work: Callable[[Piece], object]) -> list[tuple[str, Exception]]:
    """Does `work` on each piece, also after one that failed. Returns the names of those that did, and the errors."""
    failures = []
    for piece in pieces:
        try:
            work(piece)
        except Exception as error:  # noqa: BLE001  # one failing part must not keep the others from their turn
            failures.append((piece.name, error))
    return failures


def leave_surely(leave: Callable[[BaseException | None], object], error: BaseException | None) -> None:
    """Calls `leave` with the exception in flight, and again if Ctrl-C interrupted it.

    The interrupt may arrive before `leave` defers interrupts, and nothing else would then restore the state. A second
    call does nothing if the first completed.

    Raises:
        KeyboardInterrupt: `leave` was interrupted.
    """
    try:
        leave(error)
    except KeyboardInterrupt:
        leave(error)
        raise


class Backstop:
    """Runs the exit of an inner context manager if an interrupt prevented it.

    Ctrl-C may arrive after `__exit__` is called and before its first line, so that it does not run at all. This context
    manager, held around the inner one in the same `with` statement, then does the work. One interrupt cannot hit both.
    `leave` takes the exception in flight and does nothing if its work is done.
    """

    def __init__(self, leave: Callable[[BaseException | None], object]) -> None:
        self._do_leave = leave

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave_surely(self._do_leave, error)


def _restore_error(names: list[str]) -> RestoreError:
    return RestoreError(
        f"Found {format_names(names, 10)} changed after tuning; expected the same bits as before. "
        "Rebuild these objects, or reload them from a checkpoint, before you continue training."
    )
