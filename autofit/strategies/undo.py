"""Undo: runs a strategy's cleanup when its step is closed, but not when the step is dropped."""

from contextlib import ExitStack
from types import TracebackType
from typing import Any

ABSENT = object()
"""Stands for the value of an entry that a dictionary does not have."""


class Undo(ExitStack):
    """An `ExitStack` for the context of a strategy that does nothing if the step was never closed.

    If the user drops a step, or still holds it at the end of a script, the garbage collector closes the generators of
    its contexts, and each `finally` would run there. That may happen during interpreter shutdown, when imports fail,
    and after the tensors were freed; torch 2.13 then aborts the process. A step that was not closed therefore leaves
    the model modified by the plan. `TrainStep.close` leaves its contexts without an exception, so a `GeneratorExit` can
    only come from the garbage collector.
    """

    def replace(self, attributes: dict[Any, Any], key: Any, value: Any) -> None:
        """Sets an entry now, and registers that it gets the value of before, or is removed if there was none."""
        self.callback(put, attributes, key, attributes.get(key, ABSENT))
        attributes[key] = value

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute now, and registers that it gets the value of before."""
        self.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def release(self, tensor: Any) -> None:
        """Releases the memory of a tensor now, and registers that it gets as much again, without its content.

        Memory that is shared with other tensors or with an array of NumPy stays.
        """
        storage = tensor.untyped_storage()
        if storage.resizable() and storage.nbytes() == tensor.nbytes:
            self.callback(storage.resize_, storage.nbytes())
            storage.resize_(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Runs the callbacks in reverse order, or none if the generator that holds the stack was dropped."""
        if kind is GeneratorExit:
            self.pop_all()
            return False
        return super().__exit__(kind, error, trace)


def put(attributes: dict[Any, Any], key: Any, value: Any) -> None:
    """Sets an entry, or removes it if `value` is `ABSENT`."""
    if value is ABSENT:
        attributes.pop(key, None)
    else:
        attributes[key] = value
