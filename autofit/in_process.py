"""A whole search in this process, on the user's own objects: the device is locked, and everything is put back."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TypeVar

from autofit import locks
from autofit.core.answer import Answer
from autofit.core.briefing import Examiner, Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, BudgetSpent, from_record, to_record
from autofit.core.plan import Plan
from autofit.core.units import parse_bytes
from autofit.devices.base import Device
from autofit.failures.evidence import named_error
from autofit.probing.compile_cache import private_cache
from autofit.probing.local_bench import LocalBench
from autofit.probing.ranks.bench import FollowingBench, LeadingBench, opened
from autofit.probing.ranks.launch import ARRIVAL_S, joined, rank_count
from autofit.probing.ranks.outcomes import FAILED, LOST
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.search.evidence import HELD, SearchResult
from autofit.search.request import Event, Examine, Listen, Request
from autofit.search.search import STAGE, SearchInterrupted, endurance, search, training_request, with_evaluation
from autofit.trackers.progress import heartbeat, waiting, watched
from autofit.workloads.divided import INSIDE, unwrapped
from autofit.workloads.workload import Workload

NO_EVALUATION = "the plan for evaluation was not searched: it is on one rank; tune it alone, with mode='inference'"
MOST_NAMED = 3
"""Most ranks of which is said what a long proof has shown."""
LEAST_ARRIVAL_S = 60.0
"""Seconds that ranks wait for each other to arrive, at least: a longer time budget is waited for."""
_Bench = TypeVar("_Bench", bound=LocalBench)


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
    if rank_count() > 1:
        return search_on_ranks(workload, chosen, options, request, clock, progress, followers)
    watch = Watchdog(clock)
    with ExitStack() as held:
        held.enter_context(private_cache())
        with watched(progress, request, watch) as listen:
            _locked(chosen, request, watch, held, listen)
            held.enter_context(watch)
            bench = _opened(watch, lambda: LocalBench(workload, chosen, options, watch=watch))
        examine = None if examiner is None else partial(bench.examine, examiner)
        return _searched(bench, request, clock, progress, followers, watch, examine)


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
    if evaluation is None or rank_count() > 1:
        found, result = search_in_process(workload, chosen, options, request, clock, progress, followers, examiner)
        if evaluation is not None:
            found = found.model_copy(update={"caveats": (*found.caveats, NO_EVALUATION)})
        return found, result
    first = training_request(request)
    found, result = search_in_process(workload, chosen, options, first, clock, progress, followers, examiner)

    def searched(options: Options, request: Request, clock: Clock) -> Answer:
        with watched(progress, request, Watchdog(clock)) as listen:
            listen(Event("stage", STAGE))
        return search_in_process(evaluation, chosen, options, request, clock, progress, ())[0]

    found = with_evaluation(found, options, request, clock, searched)
    return found, None if result is None else replace(result, answer=found)


def search_on_ranks(
    workload: Workload,
    chosen: Device,
    options: Options,
    request: Request,
    clock: Clock,
    progress: bool | Listen,
    followers: Sequence[Listen],
) -> tuple[Answer, SearchResult | None]:
    """Searches with the other ranks of this launch. All return the same answer, and raise the same error.

    Only rank 0 reports progress, has a study and returns the search's result.

    Raises:
        RanksLost: a rank no longer answers, or does not arrive.
        AutofitError: see `autofit.tune`.
    """
    limit_s = max(LEAST_ARRIVAL_S, min(ARRIVAL_S, request.time_s or ARRIVAL_S))
    with private_cache(), unwrapped(workload) as inner, ExitStack() as held:
        watch = Watchdog(clock)
        with watched(progress, request, watch) as listen:
            arriving = joined(chosen.torch_device, lambda text: listen(Event("waiting", text)), limit_s)
            launch = held.enter_context(arriving)
        if not launch.leads:

            def following() -> FollowingBench:
                if not chosen.is_host:  # else rank 0 has the lock of this machine's processors
                    _locked(chosen, request, watch, held, lambda event: None)
                # The leader has the clock, and says how long a run may take.
                return FollowingBench(launch, inner, chosen, options, held.enter_context(Watchdog()))

            with _interrupted_by_leader():  # before the bench, which restores the handlers that it finds
                return _followed(opened(launch, following)), None

        def leading() -> LeadingBench:
            with watched(progress, request, watch) as listen:
                _locked(chosen, request, watch, held, listen)
                held.enter_context(watch)
                return _opened(watch, lambda: LeadingBench(launch, inner, chosen, options, watch))

        bench = opened(launch, leading)
        if inner is not workload:
            bench.briefing = bench.briefing.model_copy(update={"caveats": (*bench.briefing.caveats, INSIDE)})
        try:
            found, result = _searched(
                bench, request, clock, progress, followers, watch, None, partial(_examined_by_all, bench)
            )
        except SearchInterrupted as interrupted:
            bench.end(answer=interrupted.answer.model_dump(mode="json", by_alias=True), interrupted=True)
            raise
        except BaseException as error:
            other = AutofitError(f"rank 0 failed: {named_error(error)}. See what it printed.")
            bench.end(error=to_record(error if isinstance(error, AutofitError) else other))
            raise
        bench.end(answer=found.model_dump(mode="json", by_alias=True))
        return found, result


def together(said: Sequence[str]) -> str:
    """Returns what a long proof has shown, given what each rank says of its steps; "" if one says nothing.

    A failure comes first, unless it is the consequence of another rank's; then what grows on a rank. If all have held,
    the rank with the most memory counts.
    """
    bad = [(rank, text) for rank, text in enumerate(said) if not text.startswith(HELD)]
    if causes := [each for each in bad if each[1] and not LOST.search(each[1])]:
        causes.sort(key=lambda each: not each[1].startswith(FAILED))
        more = f"; and on {len(causes) - MOST_NAMED} more ranks" * (len(causes) > MOST_NAMED)
        return "; ".join(f"rank {rank}: {text}" for rank, text in causes[:MOST_NAMED]) + more
    if bad:
        return f"the ranks no longer waited for each other: {bad[0][1]}" if all(said) else ""
    rank, text = max(enumerate(said), key=lambda each: parse_bytes(each[1].rpartition(": ")[2]))
    return f"{text} (rank {rank}, the most of {len(said)})"


def _examined_by_all(bench: LeadingBench, examiner: Examiner, plan: Plan, limit_s: float) -> str:
    return together(bench.examine_all(examiner, plan, limit_s))


@contextmanager
def _interrupted_by_leader() -> Iterator[None]:
    """Leaves the first interrupt to rank 0, which a launcher interrupts as well: it ends the search with an answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, arrived = signal.getsignal(signal.SIGINT), list[int]()

    def once(number: int, frame: FrameType | None) -> None:
        if arrived:
            (before if callable(before) else signal.default_int_handler)(number, frame)
        arrived.append(number)

    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _followed(bench: FollowingBench) -> Answer:
    """Returns the answer of the search that rank 0 leads."""
    with bench.backstop, bench:
        said = bench.serve()
    if "error" in said:
        raise from_record(said["error"])
    answer = Answer.model_validate(said["answer"])
    if said.get("interrupted"):
        raise SearchInterrupted(answer)
    return answer


def _locked(device: Device, request: Request, watch: Watchdog, held: ExitStack, listen: Listen) -> None:
    """Locks the device until `held` is left."""
    about, wait_s, clock = f"{device.name()} ({device.type})", locks.patience_s(request.time_s), watch.clock
    asked_s = clock.elapsed_s
    held.enter_context(locks.held(device.lock_key, about, wait_s, waiting(watch, listen)))
    clock.waited_s += clock.elapsed_s - asked_s


def _searched(
    bench: LocalBench,
    request: Request,
    clock: Clock,
    progress: bool | Listen,
    followers: Sequence[Listen],
    watch: Watchdog,
    examine: Examine | None,
    examine_all: Callable[[Examiner, Plan, float], str] | None = None,
) -> tuple[Answer, SearchResult | None]:
    """Searches with an open bench, and leaves it. On several ranks `examine_all` looks at the steps of all."""
    results: list[SearchResult | None] = [None]

    def keep(event: Event) -> None:
        results.append(event.result or results[-1])

    with bench.backstop, bench, watched(progress, request, watch) as listen:
        heard = [listen, *followers, heartbeat(watch), keep]
        found = search(bench, request, heard, clock, examine, endurance(examine_all or bench.examine, request))
    if bench.changed:
        note = f"changed while tuning, and could not be restored: {', '.join(bench.changed)}"
        found = found.model_copy(update={"caveats": (note, *found.caveats)})
    return found, None if results[-1] is None else replace(results[-1], answer=found)


def _opened(watch: Watchdog, make: Callable[[], _Bench]) -> _Bench:
    """Opens a bench within the time budget."""
    try:
        return watch.allowed(make)
    except Overdue as error:
        raise BudgetSpent(f"{error}. Nothing was measured yet: give more time, or find out what hangs.") from None
