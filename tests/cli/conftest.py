"""A command line without its child process, for the tests of the commands."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from autofit import cli
from autofit.cli import tune as tune_command
from autofit.core.briefing import Briefing, Examiner
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from autofit.probing.remote.bench import Target
from tests.cli.processes import Running
from tests.fakes import FakeBench, briefing_of, small_bench


class FakeRemote:
    """A bench in no process at all; remembers what it was opened with."""

    target: Target
    bench: FakeBench
    fails: BaseException | None
    interrupt_after: int | None
    closed: bool
    says: str
    examined: list[tuple[Examiner, Plan, float]]

    proof_start_s = 0.0

    def __init__(self, target: Target, claim: Callable[[str, str], None], **given: object) -> None:
        kind = type(self)
        kind.target, kind.closed = target, False
        if kind.fails is not None:
            raise kind.fails
        self.briefing: Briefing = briefing_of(kind.bench)

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        kind = type(self)
        if kind.interrupt_after is not None and len(kind.bench.runs) >= kind.interrupt_after:
            raise KeyboardInterrupt
        return kind.bench.evaluate(plan, purpose, terms)

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        return Checked()

    def examine(self, examiner: Examiner, plan: Plan, limit_s: float) -> str:
        type(self).examined.append((examiner, plan, limit_s))
        return type(self).says

    def trace(self, plan: Plan) -> Trace:
        raise AssertionError("this device's memory is not estimated")

    record = trace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self).closed = True


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeRemote]:
    """Stands in for the child process; the working directory is empty."""
    fresh: Mapping[str, Any] = {"bench": small_bench(), "fails": None, "interrupt_after": None, "closed": False}
    fresh = {**fresh, "says": "", "examined": []}
    kind = type("Remote", (FakeRemote,), dict(fresh))
    monkeypatch.setattr(tune_command, "RemoteBench", kind)
    monkeypatch.chdir(tmp_path)
    return kind


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; returns exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A command that is stopped when the test ends."""
    running = Running(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()
