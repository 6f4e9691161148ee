"""The worker: the process that probes, started by keeper.py.

It alone imports the user's code. Requests come in and replies go out as one JSON object a line over two descriptors of
their own, so that whatever the user's code prints cannot disturb them. Nothing is unpickled on either side.

Requests: `{"do": "open", ...}`, `{"do": "evaluate", "plan": ..., "purpose": ...}`, `{"do": "trace", "plan": ...}`,
`{"do": "record", "plan": ...}`, `{"do": "standing"}`, `{"do": "close"}`. Replies: `briefing`, `outcome`, `trace` to the
next two, `standing`, `closed`, `error`; and `beat` at every phase, as a sign of life. To an `open` that `"claims"`
comes `device` first, and `briefing` after the next line, `{"do": "go"}`, for which the parent waits until nobody else
uses that device. With a `"time_budget"`, its seconds and how many have passed, the gates end with their share of it.
Opened with a `"stand_in"`, it only traces, for the device described there; for the host it also records.
"""

import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from time import monotonic
from typing import Any, TextIO

from pydantic import ValidationError

from autofit import devices
from autofit.chips import StandIn
from autofit.core.briefing import Briefing, Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, SpaceError, Untraceable, UserCodeError, WorkloadError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.redaction import redacted
from autofit.core.trial import Purpose
from autofit.failures.evidence import collect, scrub
from autofit.memory.trace import Trace
from autofit.probing.local_bench import LocalBench
from autofit.probing.standin_bench import StandInBench
from autofit.probing.watchdog import Watchdog
from autofit.workloads import factory
from autofit.workloads.workload import Workload

_GLOBAL_BATCH = frozenset({"global_batch_size", "max_global_batch_size"})
_OF_THE_CALLER = ("time_budget", "study", "searcher", "objective", "planned_steps", "progress")
"""Arguments of `autofit.tune` that this process has no use for."""


class Worker:
    """Serves one parent until it closes, or closes its end."""

    def __init__(self, requests: TextIO, replies: TextIO) -> None:
        self._requests, self._replies = requests, replies
        self._bench: LocalBench | StandInBench | None = None

    def serve(self) -> None:
        """Answers requests until `close` or the end of input."""
        for line in self._requests:
            request = json.loads(line)
            try:
                done = self._answer(request)
            except AutofitError as error:
                self._say("error", **describe_error(error))
                return
            if done:
                return

    def _answer(self, request: dict[str, Any]) -> bool:
        if request["do"] == "open":
            with _leaving("while it was looked at"):
                self._open(request)
        elif request["do"] == "evaluate":
            assert isinstance(self._bench, LocalBench), "open comes first, and not with a stand-in"
            outcome = self._evaluated(self._bench, Plan.model_validate(request["plan"]), Purpose(request["purpose"]))
            self._say("outcome", outcome=outcome.model_dump(mode="json"))
        elif request["do"] == "trace":
            assert self._bench is not None, "open comes first"
            limit = {} if request.get("limit_s") is None else {"limit_s": request["limit_s"]}
            self._trace(partial(self._bench.trace, **limit), Plan.model_validate(request["plan"]))
        elif request["do"] == "record":
            assert self._bench is not None, "open comes first"
            self._trace(self._bench.record, Plan.model_validate(request["plan"]))
        elif request["do"] == "standing":
            assert isinstance(self._bench, StandInBench), "open comes first, with a stand-in"
            self._say("standing", parts=[part.model_dump(mode="json") for part in self._bench.standing()])
        else:
            if isinstance(self._bench, LocalBench):
                self._bench.__exit__(None, None, None)
            self._say("closed")
            return True
        return False

    def _evaluated(self, bench: LocalBench, plan: Plan, purpose: Purpose) -> Outcome:
        try:
            with _leaving(f"with {plan}"):
                return bench.evaluate(plan, purpose)
        except UserCodeError as error:
            return Outcome(status=Status.USER_ERROR, reason=str(error), traceback_text=error.traceback_text)

    def _trace(self, tracer: Callable[[Plan], Trace], plan: Plan) -> None:
        """Replies with the trace of a plan, or with why there is none: no end of this process."""
        try:
            with _leaving("while it was traced"):
                trace = tracer(plan)
            self._say("trace", trace=trace.model_dump(mode="json"))
        except UserCodeError as error:
            self._say("trace", reason=str(error), where="in your code")
        except Untraceable as error:
            self._say("trace", reason=error.reason, where=error.where)
        except SpaceError as error:
            self._say("trace", reason=str(error), where="in preparing the plan")

    def _open(self, request: dict[str, Any]) -> None:
        self._beat("import")
        arguments = factory.make(request["target"], request["arguments"])
        _check_names(arguments, request["target"])
        workload = workload_of(arguments, request["overrides"])
        self._beat("open")
        options = options_of(arguments, request["options"])
        described = request.get("stand_in")
        if described is None:
            wanted, claims = request["device"] or arguments.get("device"), bool(request.get("claims"))
            known = None if request.get("known") is None else Briefing.model_validate(request["known"])
            with Watchdog(_clock(request.get("time_budget"))) as watch:
                briefing = self._open_bench(workload, wanted, options, claims, known, watch)
        else:
            self._bench = StandInBench.of(workload, options, StandIn.model_validate(described), self._beat)
            briefing = self._bench.briefing
        unused = [name for name in _OF_THE_CALLER if name in arguments]
        if unused:
            note = f"{', '.join(unused)} of {request['target']} is not used here: give it to the command itself"
            briefing = briefing.model_copy(update={"caveats": (*briefing.caveats, note)})
        self._say("briefing", briefing=briefing.model_dump(mode="json"))

    def _open_bench(
        self,
        workload: Workload,
        device_name: str | None,
        options: Options,
        claims: bool,
        known: Briefing | None,
        watch: Watchdog,
    ) -> Briefing:
        device = devices.choose(device_name)
        if claims:
            self._say("device", key=device.lock_key, name=f"{device.name()} ({device.type})")
            if not self._requests.readline():  # the parent waits until nobody else uses it
                raise BrokenPipeError
        if not device.is_host:  # the parent cannot know; only a host's limit needs a process of its own
            options = options.model_copy(update={"enforce": True})
        self._bench = bench = LocalBench(workload, device, options, self._beat, watch=watch, known=known)
        bench.__enter__()
        return bench.briefing

    def _beat(self, phase: str) -> None:
        self._say("beat", phase=phase)

    def _say(self, kind: str, **content: object) -> None:
        self._replies.write(json.dumps({"kind": kind, **content}) + "\n")
        self._replies.flush()


@contextmanager
def _leaving(when: str) -> Iterator[None]:
    """Shows a KeyboardInterrupt or SystemExit of the user's code, which would end this process, as an error of theirs.

    Raises:
        UserCodeError: one was raised.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        told, evidence = f"your code raised {type(error).__name__} {when}", collect(error)
        scrub(error)
        raise UserCodeError(told, evidence.traceback_text) from None


def _clock(time_budget: dict[str, float] | None) -> Clock:
    """Returns the parent's clock."""
    if time_budget is None:
        return Clock()
    return Clock(limit_s=time_budget["limit_s"], start=monotonic() - time_budget["elapsed_s"])


def workload_of(arguments: dict[str, Any], overrides: dict[str, Any]) -> Workload:
    """Returns the workload of a factory's `arguments`; values of `overrides` that are not None win.

    One on the global batch takes the place of what the factory says of it, be that a size to keep or the most.
    """
    names = {field.name for field in fields(Workload)}
    asked = {k: v for k, v in overrides.items() if v is not None}
    replaced = _GLOBAL_BATCH if _GLOBAL_BATCH & asked.keys() else frozenset()
    chosen = {k: v for k, v in arguments.items() if k in names and k not in replaced}
    return Workload(**chosen | asked)


def options_of(arguments: dict[str, Any], asked: dict[str, Any]) -> Options:
    """Returns the options that were asked for; of what was not, those of the factory's `arguments`.

    Raises:
        WorkloadError: the factory gave a value that cannot be used.
    """
    own = {k: v for k, v in arguments.items() if k in Options.model_fields and k not in asked}
    try:
        return Options.model_validate(asked | own)
    except ValidationError as error:
        first = error.errors()[0]
        raise WorkloadError(
            f"the factory gave {first['loc'][0]}={first['input']!r}: {first['msg']}. See autofit.tune for its values."
        ) from None


def _check_names(arguments: dict[str, Any], target: str) -> None:
    """Refuses what `autofit.tune` does not take: a misspelt `loss_fn` must not be dropped."""
    known = [*(field.name for field in fields(Workload)), *Options.model_fields, "device", *_OF_THE_CALLER]
    for name in arguments:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Expected some of {', '.join(known)}."
            raise WorkloadError(f"{target} returned a dict with {name!r}, which autofit.tune does not take. {hint}")


def describe_error(error: AutofitError) -> dict[str, str]:
    """Returns an error as what the parent needs to raise it again."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": error.traceback_text if isinstance(error, UserCodeError) else "",
    }


def serve(read: int, write: int) -> None:
    """Serves the requests that come in over one descriptor, and replies over another."""
    # A Ctrl-C is for the parent. One that comes here all the same ends this process by its signal; what is raised as a
    # KeyboardInterrupt is then the user's code's own doing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.set_inheritable(read, False)
    os.set_inheritable(write, False)
    with os.fdopen(read, encoding="utf-8") as requests, os.fdopen(write, "w", encoding="utf-8") as replies:
        worker = Worker(requests, replies)
        _guarded(worker.serve, worker)


def _guarded(serve: Callable[[], None], worker: Worker) -> None:
    """Serves; what is raised outside the user's code is an error of autofit's own, and the parent is told so."""
    try:
        serve()
    except BrokenPipeError:
        return
    except BaseException:
        trace = redacted(traceback.format_exc())
        worker._say("error", type="AutofitError", message=f"the probing process failed.\n{trace}")
        raise
