"""The worker: the process that probes, started by supervisor.py.

Only this process imports the user's code. Requests and replies are JSON objects, one per line, over two separate
descriptors, so that output of the user's code cannot disturb them. Nothing is unpickled on either side.

Requests: `{"do": "open", ...}`, `{"do": "evaluate", "plan": ..., "purpose": ..., "terms": ...}`,
`{"do": "trace", "plan": ..., "length": ...}`, `{"do": "check", "plan": ..., "known": ...}`, `{"do": "fixed_parts"}`,
`{"do": "examine", "plan": ..., "examiner": ..., "limit_s": ...}`, `{"do": "close"}`.

Replies, in the same order: `briefing`, `outcome`, `trace`, `checked`, `fixed_parts`, `examined`, `closed`; or `error`.
At every phase the worker sends `beat`, as a sign of life.

* If `open` has `"claims": true`, the worker first replies `device`. It sends `briefing` after the next request,
  `{"do": "go"}`, which the parent sends once no other process uses that device.
* If `open` has a `"time_budget"` (`limit_s` and `elapsed_s`), checks and compilations end when their time is used up.
* If `open` has a `"stand_in"`, the worker only traces, for the device described there.
"""

import json
import os
import signal
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from pydantic import ValidationError

from autofit import devices
from autofit.chips import StandIn
from autofit.core.briefing import Briefing, Examiner, Options
from autofit.core.budget import Clock
from autofit.core.errors import (
    AutofitError,
    SpaceError,
    Untraceable,
    UsageError,
    UserCodeError,
    WorkloadError,
    to_record,
)
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.printable import redacted
from autofit.core.trial import Purpose, RunTerms
from autofit.failures.evidence import collect, scrub
from autofit.gates.verdict import Checked, GateVerdict
from autofit.probing.frozen_heap import collect_as_usual
from autofit.probing.local_bench import LocalBench
from autofit.probing.opening import check_names
from autofit.probing.remote.target import OTHER_VERSION
from autofit.probing.standin_bench import StandInBench
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.workloads import factory
from autofit.workloads.workload import Workload

_GLOBAL_BATCH = frozenset({"global_batch_size", "max_global_batch_size"})
_OF_THE_CALLER = ("time_budget", "study", "searcher", "objective", "planned_steps", "progress")
"""Arguments of `autofit.tune` that this process does not use."""


class Worker:
    """Serves one parent until the parent sends `close` or closes its end of the pipe."""

    def __init__(self, requests: TextIO, replies: TextIO) -> None:
        self._requests, self._replies = requests, replies
        self._bench: LocalBench | StandInBench | None = None
        self._held = ExitStack()

    def serve(self) -> None:
        """Answers requests until `close`, the end of input or an error, which it reports to the parent."""
        with suppress(BrokenPipeError):  # the parent is gone
            try:
                with self._held:
                    for line in self._requests:
                        if self._answer(json.loads(line)):
                            return
            except BrokenPipeError:
                raise
            except AutofitError as error:
                self._say("error", **to_record(error))
            except BaseException:  # outside the user's code: an internal error
                trace = redacted(traceback.format_exc())
                self._say("error", type="AutofitError", message=f"the probing process failed.\n{trace}")
                raise

    def _answer(self, request: dict[str, Any]) -> bool:
        do, bench = request["do"], self._bench
        if do == "open":
            with _exits_as_errors("while the workload was opened"):
                self._open(request)
        elif do == "close":
            if isinstance(bench, LocalBench):
                bench.__exit__(None, None, None)
            self._say("closed")
            return True
        elif do == "trace" and bench is not None:
            self._say("trace", **_traced(bench, request))
        elif do == "fixed_parts" and isinstance(bench, StandInBench):
            self._say("fixed_parts", parts=[part.model_dump(mode="json") for part in bench.fixed_parts()])
        else:
            assert isinstance(bench, LocalBench), "open comes first, and not with a stand-in"
            if do == "evaluate":
                self._say("outcome", outcome=_evaluated(bench, request).model_dump(mode="json"))
            elif do == "examine":
                plan, examiner = Plan.model_validate(request["plan"]), Examiner.model_validate(request["examiner"])
                self._say("examined", examined=bench.examine(examiner, plan, request["limit_s"]))
            else:
                self._say("checked", checked=_checked(bench, request).model_dump(mode="json"))
        return False

    def _open(self, request: dict[str, Any]) -> None:
        self._beat("import")
        workload, options, arguments = made(request)
        if request.get("evaluation"):
            if (evaluation := workload.evaluation) is None:  # a workload of its own, made at each call
                raise WorkloadError(
                    f"{request['target']} returned no eval_loader when it was called again. Make it return the same "
                    "workload each time."
                )
            workload = evaluation
        self._beat("open")
        if request.get("stand_in") is None:
            self._open_bench(workload, request["device"] or arguments.get("device"), options, request)
        else:
            described = StandIn.model_validate(request["stand_in"])
            self._bench = StandInBench.of(workload, options, described, self._beat)
        assert self._bench is not None, "one of the two is open"
        briefing = self._bench.briefing
        unused = [name for name in _OF_THE_CALLER if name in arguments]
        if unused:
            note = f"{', '.join(unused)} from {request['target']} was ignored: pass it to the command instead"
            briefing = briefing.model_copy(update={"caveats": (*briefing.caveats, note)})
        asked = bool(request.get("libraries"))
        loaded = {"libraries": installed_modules(request["target"]), "gpus": devices.gpu_count()} if asked else {}
        self._say("briefing", briefing=briefing.model_dump(mode="json"), **loaded)

    def _open_bench(
        self, workload: Workload, device_name: str | None, options: Options, request: dict[str, Any]
    ) -> None:
        try:
            known = None if request.get("known") is None else Briefing.model_validate(request["known"])
        except ValidationError as error:
            raise AutofitError(OTHER_VERSION) from error
        clock = Clock()  # the parent's, if there is a time budget
        if (budget := request.get("time_budget")) is not None:
            clock = Clock(limit_s=budget["limit_s"], start=monotonic() - budget["elapsed_s"])
        watch, device = self._held.enter_context(Watchdog(clock)), devices.choose(device_name)
        if request.get("claims"):
            self._say("device", key=device.lock_key, name=f"{device.name()} ({device.type})")
            if not self._requests.readline():  # the parent waits until no other process uses the device
                raise BrokenPipeError
        if not device.is_host:  # the parent cannot know this; only a host's limit needs a separate process
            options = options.model_copy(update={"enforce": True})
        self._bench = bench = LocalBench(workload, device, options, self._beat, watch=watch, known=known)
        bench.__enter__()

    def _beat(self, phase: str) -> None:
        self._say("beat", phase=phase)

    def _say(self, kind: str, **content: object) -> None:
        self._replies.write(json.dumps({"kind": kind, **content}) + "\n")
        self._replies.flush()


def _evaluated(bench: LocalBench, request: dict[str, Any]) -> Outcome:
    plan, terms = Plan.model_validate(request["plan"]), RunTerms.model_validate(request["terms"])
    try:
        with _exits_as_errors(f"with {plan}"):
            return bench.evaluate(plan, Purpose(request["purpose"]), terms)
    except UserCodeError as error:
        return Outcome(status=Status.USER_ERROR, reason=str(error), traceback_text=error.traceback_text)


def _checked(bench: LocalBench, request: dict[str, Any]) -> Checked:
    plan = Plan.model_validate(request["plan"])
    known = {name: GateVerdict.model_validate(each) for name, each in request["known"].items()}
    try:
        with _exits_as_errors(f"in the check of {plan}"):
            return bench.check(plan, known)
    except UserCodeError as error:
        return Checked(passed=False, checked=False, reason=str(error))


def _traced(bench: LocalBench | StandInBench, request: dict[str, Any]) -> dict[str, object]:
    """Returns the trace of a plan, or the reason why there is none. This process keeps running."""
    more = {name: request[name] for name in ("limit_s", "length") if request.get(name) is not None}
    try:
        with _exits_as_errors("in the trace"):
            return {"trace": bench.trace(Plan.model_validate(request["plan"]), **more).model_dump(mode="json")}
    except UserCodeError as error:
        return {"reason": str(error), "where": "in your code"}
    except Untraceable as error:
        return {"reason": error.reason, "where": error.where}
    except SpaceError as error:
        return {"reason": str(error), "where": "in preparing the plan"}


@contextmanager
def _exits_as_errors(when: str) -> Iterator[None]:
    """Turns what the user's code raised and would end this process, such as a SystemExit, into an error.

    Raises:
        UserCodeError: the code inside raised an exception that is not an `Exception`.
    """
    try:
        yield
    except (Exception, Overdue):
        raise
    except BaseException as error:  # noqa: BLE001  # whatever else the user's code raises
        message, evidence = f"your code raised {type(error).__name__} {when}", collect(error)
        scrub(error)
        raise UserCodeError(message, evidence.traceback_text) from None


def made(request: dict[str, Any]) -> tuple[Workload, Options, dict[str, Any]]:
    """Returns the workload that a request opens, the options of its search, and the factory's arguments.

    Raises:
        AutofitError: an option is wrong, or the factory fails or returns something else.
    """
    check_names(Options.model_validate(request["options"]))  # before the user's code and the device are waited for
    arguments = factory.make(request["target"], request["arguments"])
    collect_as_usual()
    _check_names(arguments, request["target"])
    workload, options = workload_of(arguments, request["overrides"]), options_of(arguments, request["options"])
    check_names(options)
    return workload, options, arguments


def workload_of(arguments: dict[str, Any], overrides: dict[str, Any]) -> Workload:
    """Returns the workload made from a factory's `arguments`. Values of `overrides` win unless they are None.

    An override of either global batch argument (fixed or maximum size) replaces both arguments of the factory.
    """
    names = {field.name for field in fields(Workload)}
    asked = {k: v for k, v in overrides.items() if v is not None}
    replaced = _GLOBAL_BATCH if _GLOBAL_BATCH & asked.keys() else frozenset()
    chosen = {k: v for k, v in arguments.items() if k in names and k not in replaced}
    return Workload(**chosen | asked)


def options_of(arguments: dict[str, Any], asked: dict[str, Any]) -> Options:
    """Returns the requested options, completed by those in the factory's `arguments`.

    Raises:
        WorkloadError: the factory gave an invalid value.
    """
    given = {k: v for k, v in arguments.items() if k in Options.model_fields and k not in asked}
    try:
        return factory.record_of(Options, **asked | given)
    except UsageError as error:
        raise WorkloadError(f"the factory gave an option that is not allowed: {error} Change it there.") from None


def _check_names(arguments: dict[str, Any], target: str) -> None:
    """Rejects names that `autofit.tune` does not accept, so that a misspelt `loss_fn` is not silently dropped."""
    known = [*(field.name for field in fields(Workload)), *Options.model_fields, "device", *_OF_THE_CALLER]
    for name in arguments:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Expected some of {', '.join(known)}."
            raise WorkloadError(f"{target} returned a dict with {name!r}, which autofit.tune does not accept. {hint}")


def installed_modules(target: str) -> list[str]:
    """Returns the loaded modules of installed packages and the standard library, in the order their imports ended.

    A package that is installed from a source folder (`pip install -e`) counts as the user's code, and so does the
    package that holds the target, such as `package.module:function`.
    """
    package, paths = target.partition(":")[0].partition(".")[0], sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    folders = tuple(f"{Path(folder)}/" for folder in installed)
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if isinstance(file, str) and top not in ("__main__", "__mp_main__", package) and file.startswith(folders):
            found.append(name)
    return found


def serve(read: int, write: int) -> None:
    """Serves the requests that arrive on one descriptor, and replies on the other."""
    # A Ctrl-C is for the parent. If one arrives here nevertheless, its signal ends this process. A KeyboardInterrupt
    # can then only come from the user's code.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.set_inheritable(read, False)
    os.set_inheritable(write, False)
    with os.fdopen(read, encoding="utf-8") as requests, os.fdopen(write, "w", encoding="utf-8") as replies:
        Worker(requests, replies).serve()
