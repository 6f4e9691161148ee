"""Loops of the user's that are observed as they are: over a loader in a notebook, or in a whole script."""

import gc
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from autofit.doctor.diagnosis import Diagnosis, draw
from autofit.doctor.observation import STEPS
from autofit.doctor.session import EVERYTHING, Scope, Session
from autofit.reports.canvas import Canvas

Item = TypeVar("Item")
ALONE = Lock()
"""Held while a loop or a script is observed. Two observations would put back torch's functions in the wrong order."""
OBSERVED = "autofit.watch: another observation has not ended, so that this loop is not observed."
INCOMPLETE = (
    "it ended before all steps were observed: what needs more steps was not found; give it more batches, or watch "
    "fewer steps"
)
PATIENCE = 3
"""How often a script may swallow `Enough` before it is ended in another way."""
MOST_PASSES = 16
"""Number of batches, or backward passes of a script, after which each is a step if no optimizer has stepped by then.
The weights are updated by hand."""
NOTHING = (
    "autofit.watch: no optimizer stepped, so that nothing was observed. Where weights are updated by hand, each "
    f"batch is a step after the first {MOST_PASSES}."
)


class WatchedLoader(Generic[Item]):
    """Yields the batches of a loader, and observes the first steps of the first loop over it.

    A step ends with the body of the loop. With gradient accumulation, it ends with the body in which an optimizer
    stepped.

    Attributes:
        loader: the loader.
        diagnosis: what was found; None while the observation is not complete.
    """

    def __init__(self, loader: Iterable[Item], *, steps: int = STEPS, show: bool = True) -> None:
        self.loader, self._scope = loader, Scope(steps=steps).checked()
        self._show, self._started, self._over = show, False, False
        self.diagnosis: Diagnosis | None = None

    def __len__(self) -> int:
        """Returns the number of batches, if the loader knows it."""
        return len(self.loader)  # type: ignore[arg-type]  # raises what the loader's own len() raises

    def __iter__(self) -> Iterator[Item]:
        """Yields the batches."""
        if self._started or not _begins():
            yield from self.loader
            return
        self._started = True
        session, loop = Session("the loop", lambda: {"loader": self.loader}, scope=self._scope), _LoopSteps()
        try:
            for item in self._batches(session):
                yield item
                if not self._over and loop.has_ended():
                    self._take(session.boundary, loop)
        finally:
            if not self._over:
                self._take(partial(session.end, INCOMPLETE), loop)
                if self._show and not self._over and loop.waits:
                    print(NOTHING)  # noqa: T201  # as the diagnosis
            session.close()
            loop.close()
            ALONE.release()

    def _batches(self, session: Session) -> Iterator[Item]:
        batches = iter(self.loader)
        while True:
            try:
                with session.loading():
                    item = next(batches)
            except StopIteration:
                return
            yield item

    def _take(self, observe: Callable[[], Diagnosis | None], loop: "_LoopSteps") -> None:
        """Takes what was found, if the observation is over. It may fail, but the loop runs all the same."""
        try:
            self.diagnosis = observe()
        except Exception as error:  # noqa: BLE001  # such as a device that autofit does not know
            self._over = True
            warnings.warn(f"autofit.watch failed: {type(error).__name__}: {error}", stacklevel=3)
        if self.diagnosis is not None:
            self._over = True
            loop.close()
            if self._show:
                print(draw(self.diagnosis, Canvas.of(sys.stdout)))  # noqa: T201  # in a notebook, there is no other place


def _begins() -> bool:
    """Returns whether a loop may be observed, which no other one may be then until `ALONE` is released."""
    if ALONE.acquire(blocking=False):
        return True
    gc.collect()  # an abandoned loop is over once nothing holds it
    if ALONE.acquire(blocking=False):
        return True
    warnings.warn(OBSERVED, stacklevel=3)
    return False


class _LoopSteps:
    """Knows whether the body of a loop has ended an optimizer step."""

    def __init__(self) -> None:
        self._passes, self._stepped, self._bodies = 0, False, 0
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._counted
        self._hook = register_optimizer_step_post_hook(self._update)

    @property
    def waits(self) -> bool:
        """Whether a backward pass has run in this step, and no optimizer has stepped yet."""
        return self._passes > 0 and not self._stepped

    def has_ended(self) -> bool:
        """Returns whether a step has ended with the body that has just run. Then the next one begins."""
        self._bodies += 1
        if self.waits and self._bodies < MOST_PASSES:
            return False
        self._passes, self._stepped = 0, False
        return True

    def close(self) -> None:
        """Observes nothing any more."""
        self._hook.remove()
        if torch.autograd.backward == self._counted:
            torch.autograd.backward = self._backward

    def _counted(self, *args: Any, **kwargs: Any) -> None:
        self._passes += 1
        self._backward(*args, **kwargs)

    def _update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped = True


class Enough(BaseException):
    """Ends a script once enough of it was seen. Not an `Exception`, so that a script does not catch it by accident."""


class ScriptObserver:
    """Observes the training of a script that runs in this process. A step ends with that of the first optimizer.

    If no optimizer has stepped after `MOST_PASSES` backward passes, each further pass ends a step.

    Use it as a context around the script. After the last step, each further update raises `Enough`.

    Args:
        script: name of the script.
        scope: what to look for.
        end: ends the process, given what was found. Called if the script swallows `Enough` again and again.

    Attributes:
        diagnosis: what was found; None if not even one step was observed.
        updates: number of updates that were seen.
        module: gets the globals of a script that has ended by itself, before the context is left.
        error: with what the observation itself failed; None if it did not.
    """

    def __init__(
        self,
        script: str,
        scope: Scope = EVERYTHING,
        end: Callable[[Diagnosis], object] = lambda found: None,
    ) -> None:
        self.module = ModuleType("__main__")
        self._session, self.updates = Session(script, lambda: {"__main__": self.module}, scope=scope), 0
        self._end, self._raised = end, 0
        self.error: Exception | None = None
        self._first: Optimizer | None = None
        self.diagnosis: Diagnosis | None = None

    def __enter__(self) -> "ScriptObserver":
        self._alone = ALONE.acquire(blocking=False)
        self._hook = register_optimizer_step_post_hook(self._update)
        self._passes, self._backward = 0, torch.autograd.backward
        torch.autograd.backward = self._counted
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._hook.remove()
        if self.diagnosis is None and self.error is None:
            failed = error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
            note = f"the script failed: {type(error).__name__}: {error}" if failed else INCOMPLETE
            self.diagnosis = self._session.end(note, failed=failed, over=error is None)
        self._session.close()
        torch.autograd.backward = self._backward  # at last, as the watch puts back what it has found
        if self._alone:
            ALONE.release()

    def _counted(self, *args: Any, **kwargs: Any) -> None:
        self._backward(*args, **kwargs)
        self._passes += 1
        if self._first is None and self._passes >= MOST_PASSES:
            self._end_step()

    def _update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._first = self._first or optimizer
        if optimizer is self._first:
            self.updates += 1
            self._end_step()

    def _end_step(self) -> None:
        if self.error is not None:
            raise Enough
        if self.diagnosis is not None:
            self._raise(self.diagnosis)
        try:
            self.diagnosis = self._session.boundary()
        except Exception as error:
            self.error = error
            raise Enough from error
        if self.diagnosis is not None:
            self._raise(self.diagnosis)

    def _raise(self, found: Diagnosis) -> NoReturn:
        self._raised += 1
        if self._raised > PATIENCE:
            self._end(found)
        raise Enough
