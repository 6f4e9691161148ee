"""A whole search in this process, on the user's own objects: the device is locked, and everything is put back."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from autofit import locks
from autofit.core.answer import Answer
from autofit.core.briefing import Examiner, Options
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent
from autofit.devices.base import Device
from autofit.probing.compile_cache import private_cache
from autofit.probing.local_bench import LocalBench
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.search.evidence import SearchResult
from autofit.search.request import Event, Listen, Request
from autofit.search.search import STAGE, search, training_request, with_evaluation
from autofit.trackers.progress import Progress, heartbeat, waiting, watched
from autofit.workloads.workload import Workload


def search_in_process(
    workload: Workload,
    chosen: Device,
    options: Options,
    request: Request,
    clock: Clock,
    progress: bool | Listen,
    followers: Sequence[Listen],
    examiner: Examiner | None = None,
) -> tuple[Answer, SearchResult | None]:
    """Returns the answer of a search on a device, and its last event's result. The device is locked meanwhile.

    `clock` runs since the call began. `followers` are further listeners, which must not raise. The `examiner` looks at
    the steps of the answer.

    Raises:
        AutofitError: see `autofit.tune`.
    """
    results: list[SearchResult | None] = [None]

    def keep(event: Event) -> None:
        results.append(event.result or results[-1])

    about, wait_s, watch = f"{chosen.name()} ({chosen.type})", locks.patience_s(request.time_s), Watchdog(clock)
    with ExitStack() as held:
        held.enter_context(private_cache())
        with watched(progress, None, request, clock, watch) as listen:
            asked_s = clock.elapsed_s
            held.enter_context(locks.held(chosen.lock_key, about, wait_s, waiting(watch, listen)))
            clock.waited_s += clock.elapsed_s - asked_s
            held.enter_context(watch)
            bench = _opened(workload, chosen, options, watch)
        with bench.backstop, bench, watched(progress, bench.briefing, request, clock, watch) as listen:
            examine = None if examiner is None else partial(bench.examine, examiner)
            found = search(bench, request, [listen, *followers, heartbeat(watch), keep], clock, examine)
    if bench.changed:
        note = f"changed while tuning, and could not be restored: {', '.join(bench.changed)}"
        found = found.model_copy(update={"caveats": (note, *found.caveats)})
    return found, None if results[-1] is None else replace(results[-1], answer=found)


def search_with_evaluation(
    workload: Workload,
    chosen: Device,
    options: Options,
    request: Request,
    clock: Clock,
    progress: bool | Listen,
    followers: Sequence[Listen],
    examiner: Examiner | None = None,
) -> tuple[Answer, SearchResult | None]:
    """Searches as `search_in_process`, and then evaluation if the workload has an `eval_loader`.

    Followers get the events of the training's search alone, and the `examiner` looks at its answer alone.

    Raises:
        AutofitError: see `autofit.tune`.
    """
    evaluation = workload.evaluation
    if evaluation is None:
        return search_in_process(workload, chosen, options, request, clock, progress, followers, examiner)
    first = training_request(request)
    found, result = search_in_process(workload, chosen, options, first, clock, progress, followers, examiner)

    def searched(options: Options, request: Request, clock: Clock) -> Answer:
        with Progress.of(progress) as listen:
            listen(Event("stage", STAGE))
        return search_in_process(evaluation, chosen, options, request, clock, progress, ())[0]

    found = with_evaluation(found, options, request, clock, searched)
    return found, None if result is None else replace(result, answer=found)


def _opened(workload: Workload, device: Device, options: Options, watch: Watchdog) -> LocalBench:
    """Opens a bench within the time budget."""
    try:
        return watch.allowed(lambda: LocalBench(workload, device, options, watch=watch))
    except Overdue as error:
        raise BudgetSpent(f"{error}. Nothing was measured yet: give more time, or find out what hangs.") from None
