"""Compilation: each plan is compiled as if it were the only one, as in training, and within a deadline."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from autofit.core.budget import Clock
from autofit.core.outcome import COMPILING, Outcome, Status
from autofit.core.units import format_duration
from autofit.probing.watchdog import Overdue, Watchdog

COMPILE_S = 300.0
"""Maximum seconds to compile one plan. The search does not begin a compilation that would not end in time; this and the
end of the time budget are the limits on one that takes longer than expected."""
MOST_COMPILED = 256
"""Maximum number of recompilations that torch.compile keeps: one per plan, and no search tries more plans than this."""
FIRST_STEPS = 2
"""Number of steps that may compile: gradients and the states of the optimizer are there from the second one on."""
MOST_AGAIN, MOST_S = 3, 60.0
"""Number of steps that compiled again, and number of seconds, after which no further steps are run."""
_CAUSES = 2
"""Maximum number of causes of graph breaks, and of recompilations, that are named."""
_WORDS = 160
"""Maximum length of a cause."""


def start_cold() -> None:
    """Discards the code that torch.compile made in this process, so that the next steps compile as training would.

    Otherwise the first plan would pay for all, and later plans would run kernels that also serve its batch size. Other
    functions that the user has compiled are compiled again at their next call.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")  # looked up, because the import and a reset may each take seconds
    if dynamo is not None and dynamo.counters.get("frames"):
        torch.compiler.reset()


def shapes_of_a_training(vary: bool) -> AbstractContextManager[object]:
    """Returns a context in which torch.compile treats each plan's batch size as the only one, as training does.

    Otherwise the second size would get kernels for any size, and from the ninth size on a model may silently run
    uncompiled, so that plans that run later would look slower. If shapes vary within training too, nothing is changed.
    """
    config = sys.modules.get("torch._dynamo.config")  # if it is not loaded, nothing has been compiled
    if vary or config is None:
        return nullcontext()
    settings = {"automatic_dynamic_shapes": False, "recompile_limit": MOST_COMPILED}
    patched: AbstractContextManager[object] = config.patch(settings)
    return patched


def _graphs() -> int:
    """Returns how many graphs torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"].get("unique_graphs", 0))


def broken_guards() -> list[str]:
    """Returns what no longer held, each time that torch.compile looked for code, in torch's words.

    For one new compilation, each code that the function has already has a line.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    reasons = [] if utils is None else [each for found in utils.guard_failures.values() for each in found]
    lines = [_line(reason).partition(" (HINT")[0] for reason in reasons]
    return [line.partition(": ")[2] or line for line in lines]


@dataclass(frozen=True, slots=True)
class Recompilations:
    """The compilations in steps of a training after those that warm it up.

    Attributes:
        steps: number of steps, without those of the warm-up.
        compiled: number of these in which something was compiled.
        seconds: how much longer such a step takes than a second one on the same batch; None if that compiles too.
        causes: what no longer held, in torch's words.
        limit: number of compilations of a function after which torch runs it uncompiled.
    """

    steps: int
    compiled: int
    seconds: float | None
    causes: str
    limit: int


def recompilations(steps: Iterable[Callable[[], float]]) -> Recompilations | str:
    """Runs steps, which compile anew, and returns what was compiled after the first `FIRST_STEPS`; why nothing was.

    It ends when `MOST_AGAIN` steps have compiled again, or after `MOST_S` seconds.

    Args:
        steps: run a step each and return its seconds. One that compiles is run twice.
    """
    start_cold()
    began, first = perf_counter(), _graphs()
    compiled, count, longer, causes = 0, 0, list[float](), list[str]()
    for number, step in enumerate(steps):
        graphs, broken = _graphs(), Counter(broken_guards())
        took_s = step()
        if number == FIRST_STEPS - 1 and _graphs() == first:
            return "torch.compile compiles nothing in a step"
        if number < FIRST_STEPS:
            continue
        count += 1
        if _graphs() > graphs:
            compiled, graphs = compiled + 1, _graphs()
            causes += list(Counter(broken_guards()) - broken)[:1]
            without_s = step()
            longer += [took_s - without_s] if _graphs() == graphs else []
        if compiled == MOST_AGAIN or perf_counter() - began >= MOST_S:
            break
    limit: int = getattr(sys.modules.get("torch._dynamo.config"), "recompile_limit", 0)
    return Recompilations(count, compiled, fmean(longer) if longer else None, _named(causes), limit)


@dataclass(slots=True)
class Compiler:
    """Compiles the step of one plan, before it is measured, and says afterwards what came of it.

    Attributes:
        watch: ends a compilation that is not over when the time is. It cannot end a single library call.
        on_host: whether kernels are compiled in this process, one at a time, so that an interrupt leaves nothing
            running. For an accelerator, torch starts processes of its own.
    """

    watch: Watchdog
    on_host: bool
    _graphs_before: int = field(default_factory=_graphs)

    def compile(self, first_steps: Callable[[], float]) -> float | Outcome:
        """Runs the first steps, which compile. Returns the seconds they took, or the outcome of a missed deadline."""
        began = perf_counter()
        alone: AbstractContextManager[object] = nullcontext()
        if self.on_host:
            config: Any = importlib.import_module("torch._inductor.config")  # takes seconds, so only if a plan compiles
            alone = config.patch(compile_threads=1)
        try:
            with alone:
                return self.watch.allowed(first_steps, COMPILE_S)
        except Overdue:
            took_s = perf_counter() - began
        return Outcome(status=Status.NOT_COMPILED, reason=_overdue(took_s, self.watch.clock), phase=COMPILING)

    def notes(self) -> Iterator[str]:
        """Yields what the user should know about the code of this plan, which must have started cold."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return
        graphs = _graphs() - self._graphs_before
        if not graphs:
            yield (
                "torch.compile compiled nothing: the step does not call the modules that the plan compiles, or breaks "
                "the graph at every operation"
            )
        breaks = (_break(each) for each in utils.graph_break_reasons if getattr(each, "graph_break", True))
        if broken := list(dict.fromkeys(breaks)):
            places = "1 place" if len(broken) == 1 else f"{len(broken)} places"
            yield f"torch.compile broke the graph at {places} and made {graphs} graphs: {_named(broken)}"
        if again := broken_guards():
            times = "once" if len(again) == 1 else f"{len(again)} times"
            yield f"torch.compile compiled {times} again, because this no longer held: {_named(again)}"


def _overdue(took_s: float, clock: Clock) -> str:
    """Returns why a compilation was ended: after `COMPILE_S`, at the end of the time budget, or of its probe's time."""
    reason = f"compiling was not finished after {format_duration(took_s)}"
    if took_s >= COMPILE_S:
        return f"{reason}, the most that autofit waits for one plan"
    if clock.left_s <= 0 and clock.limit_s is not None:
        return f"{reason}, when the time budget of {format_duration(clock.limit_s)} ended"
    return f"{reason}, all the time that its probe had"


def _break(reason: Any) -> str:
    """Returns the cause of a graph break with the user's line."""
    stack = getattr(reason, "user_stack", None) or ()
    where = f" ({stack[-1].filename.replace(chr(92), '/').rpartition('/')[2]}:{stack[-1].lineno})" if stack else ""
    return f"{_line(reason.reason)}{where}"


def _line(text: object) -> str:
    return " ".join(next(iter(str(text).strip().splitlines()), "").split())[:_WORDS]


def _named(causes: list[str]) -> str:
    each = list(dict.fromkeys(causes))
    more = f" and {len(each) - _CAUSES} more" if len(each) > _CAUSES else ""
    return "; ".join(each[:_CAUSES]) + more


def forget() -> None:
    """Discards the code of a search that compiled, and ends the processes that torch started to compile it."""
    start_cold()
    pools = sys.modules.get("torch._inductor.async_compile")
    if pools is not None:
        pools.shutdown_compile_workers()
