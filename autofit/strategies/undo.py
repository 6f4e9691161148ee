"""Undo: what a strategy does when its step is closed, and not when the step is dropped."""

from contextlib import ExitStack
from types import TracebackType


class Undo(ExitStack):
    """An `ExitStack` for the context of a strategy: it does nothing when the step was never closed.

    A step that a person drops, or still holds at the end of their script, ends in the garbage collector, which closes
    the generators of its contexts: each `finally` would run there. It may be while the interpreter shuts down, when
    imports fail, and along with the tensors that it would change: torch 2.13 then ends the process. So such a step
    leaves the model as the plan has it, as a step does that is not closed. `TrainStep.close` leaves contexts without an
    exception, so that a `GeneratorExit` can only come from there.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Does what was noted, the last first; nothing when the generator that holds it is dropped."""
        if kind is GeneratorExit:
            self.pop_all()
            return False
        return super().__exit__(kind, error, trace)
