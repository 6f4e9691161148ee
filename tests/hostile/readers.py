"""The readers of files and messages that others may have written: what each is given, and what it may do with it."""

import json
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st

from autofit import exporters, planfile
from autofit.core.errors import AutofitError, UserCodeError, to_record
from autofit.core.printable import ascii_json, printable
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked
from autofit.memory.breakdown import Part
from autofit.memory.trace import Kind
from autofit.nightly.history import History
from autofit.nightly.jobs import read_jobs
from autofit.probing.remote import bench as remote
from autofit.probing.remote.child import Child, Deadlines, OutputLog
from autofit.reports import differences, sources, writing
from autofit.reports.assemble import assembled
from autofit.reports.canvas import Canvas
from autofit.reports.summary import summarize
from autofit.study import Study
from tests.hostile.mutations import damaged_lines, damaged_yaml
from tests.memory.traces import Script
from tests.nightly.history_samples import FULL, record
from tests.recorded import RecordedBench, recorded_search, table
from tests.study.samples import measured
from tests.test_planfile import RECORD

MOST_LETTERS = 20_000
"""Largest length of a message: what was found is shown in part."""


def refusal(read: Callable[[], object]) -> str:
    """Returns why a reader refuses what it was given; "" if it does not. Any other error than autofit's is a fault."""
    try:
        read()
    except AutofitError as error:
        text = str(error)
        assert text, "an error without a message"
        return text
    return ""


@dataclass(frozen=True, slots=True)
class HostileReader:
    """A reader.

    Attributes:
        valid: what it reads without an error.
        damaged: yields variants of that.
        read: reads bytes, with a folder for files; whatever it returns is used as the commands use it.
    """

    valid: bytes
    damaged: st.SearchStrategy[bytes]
    read: Callable[[bytes, Path], None]


def _plan(data: bytes, folder: Path) -> None:
    path = folder / "plan.yaml"
    path.write_bytes(data)
    try:
        answer = planfile.load(path)
    except AutofitError as error:
        assert 0 < len(str(error)) <= MOST_LETTERS, len(str(error))  # noqa: PT017  # any other error is a fault too
        raise
    canvas = Canvas(width=80)
    printable(summarize(answer, canvas, str(path))).encode()
    printable(differences.to_text(answer, RECORD, ("a", "b"), canvas)).encode()
    json.dumps(differences.to_dict(RECORD, answer))
    ascii_json(answer.model_dump_json(by_alias=True)).encode()
    planfile.dumps(answer).encode()
    for exporter in exporters.members():
        refusal(lambda exporter=exporter: exporter.export(answer, None))  # type: ignore[misc]  # mypy knows no default
    _report(str(path))


def _report(source: str) -> None:
    report = assembled(sources.of_name(source))
    for kind in ("html", "md", "json"):
        writing.rendered(report, kind).encode()


def _study(data: bytes, folder: Path) -> None:
    path = folder / "study.journal"
    path.write_bytes(data)
    refusal(lambda: _report(str(path)))
    refusal(lambda: History(path, folder / "mark").of_job("gpt"))
    briefing = RecordedBench(table("resnet")).briefing
    study = Study(
        path,
        name=f"{briefing.environment.workload}-samples",
        environment=briefing.environment,
        space=briefing.space,
        objective=RECORD.objective,
        memory_bytes=briefing.budget.memory_bytes,
    )
    number = study.begin(briefing.space.baseline, Purpose.PROBE)
    study.finish(number, measured())


def _jobs(data: bytes, folder: Path) -> None:
    path = folder / "jobs.yaml"
    path.write_bytes(data)
    found = read_jobs(path)
    for problem in found.problems:
        assert len(problem) <= MOST_LETTERS
        assert problem.isprintable()
    for job in found.jobs:
        json.dumps(job.target.request(enforce=False))


class _Ended:
    """The process of a child that has ended by itself."""

    pid, returncode = 0, 0

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float) -> int:
        return 0


class ScriptedChild(Child):
    """A child whose replies are given from the start, and which has then ended."""

    def __init__(self, data: bytes) -> None:
        self.deadlines = Deadlines()
        self._stepped = self._ended = False
        self._phase, self._buffer, self._tail, self._log = "", data, b"", OutputLog()
        self.process: Any = _Ended()
        self._in, write = os.pipe()
        os.close(write)
        self._out = os.open(os.devnull, os.O_WRONLY)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)

    @property
    def ended(self) -> bool:
        return self._ended

    def kill(self) -> None:
        if not self._ended:
            self._ended = True
            self._selector.close()
            os.close(self._in)
            os.close(self._out)

    close = kill


def _replies(data: bytes, folder: Path) -> None:
    """Has a bench ask everything that it can ask; each of its children replies with the same lines."""
    plan = RecordedBench(table("resnet")).briefing.space.baseline
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "Child", lambda *given: ScriptedChild(data))
        with remote.RemoteBench(remote.Target("train.py"), claim=lambda key, name: None) as bench:
            bench.evaluate(plan, Purpose.PROBE)
            bench.check(plan, {})
            for ask in (lambda: bench.trace(plan), bench.fixed_parts, lambda: bench.evaluate(plan, Purpose.PROOF)):
                refusal(ask)


def _valid_plan() -> bytes:
    """Returns the plan of a search, with alternatives and a plan for evaluation."""
    found = recorded_search().answer
    assert found is not None
    few = found.model_copy(update={"alternatives": found.alternatives[:2], "study": "study.journal"})
    return planfile.dumps(few.model_copy(update={"evaluation": RECORD})).encode()


def _valid_replies() -> bytes:
    script = Script(micro_batch_size=8)
    script.take(5, Kind.PARAMETER)
    briefing = RecordedBench(table("resnet")).briefing.model_dump(mode="json")
    replies: list[dict[str, Any]] = [
        {"kind": "beat", "phase": "import"},
        {"kind": "device", "key": "cuda:0", "name": "H100"},
        {"kind": "briefing", "briefing": briefing, "libraries": ["json"], "gpus": 0},
        {"kind": "beat", "phase": "step"},
        {"kind": "outcome", "outcome": measured().model_dump(mode="json")},
        {"kind": "checked", "checked": Checked().model_dump(mode="json")},
        {"kind": "trace", "trace": script.trace().model_dump(mode="json")},
        {"kind": "fixed_parts", "parts": [Part(name="parameters", size_bytes=5).model_dump(mode="json")]},
        {"kind": "error", **to_record(UserCodeError("it failed", "line 7"))},
    ]
    return b"".join(json.dumps(reply).encode() + b"\n" for reply in replies)


def _valid_study() -> bytes:
    """Returns a journal with a search and a night."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.journal"
        recorded_search(path)
        History(path, Path(folder) / "mark").append(record(1))
        return path.read_bytes()


@cache
def reader(name: str) -> HostileReader:
    """Returns the reader of a name."""
    valid, damaged, read = {
        "plan": (_valid_plan, damaged_yaml, _plan),
        "study": (_valid_study, damaged_lines, _study),
        "jobs": (FULL.encode, damaged_yaml, _jobs),
        "replies": (_valid_replies, damaged_lines, _replies),
    }[name]
    data = valid()
    return HostileReader(data, damaged(data), read)
