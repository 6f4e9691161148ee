"""What a child answers is the record that was asked for, or the error that it reports."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.core.errors import AutofitError, DevicePoisoned, UserCodeError
from autofit.memory.trace import Kind, Trace
from autofit.probing.remote.bench import asked, parsed
from autofit.probing.remote.child import Child, ChildEnded, Deadlines, OutputLog
from tests.memory.traces import Script
from tests.probing.remote.fake_worker import install, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

DEADLINES = Deadlines(first_s=60.0, progress_s=60.0, total_s=60.0, grace_s=10.0, exit_s=30.0)
Start = Callable[[str], Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Child] = []
    log = OutputLog(tmp_path / "printed.log")

    def start_child(behaviour: str) -> Child:
        install(tmp_path, behaviour, monkeypatch)
        started.append(Child(DEADLINES, {}, log))
        return started[-1]

    yield start_child
    for made in started:
        made.kill()
    log.close()


def test_a_reply_of_any_expected_kind_is_returned(start: Start) -> None:
    beats: list[str] = []
    child = start("say('beat', phase='open'); say(request['do'], found=1)")
    assert asked(child, {"do": "device"}, ("briefing", "device"), math.inf, beats.append)["found"] == 1
    assert asked(child, {"do": "closed"}, "closed", math.inf, beats.append)["kind"] == "closed"
    assert beats == ["open", "open"]
    assert not child.ended


@pytest.mark.parametrize(
    ("says", "kind", "traceback_text"),
    [
        ("type='DevicePoisoned', message='gone'", DevicePoisoned, None),
        ("type='UserCodeError', message='gone', traceback='line 7'", UserCodeError, "line 7"),
        ("type='Path', message='gone'", AutofitError, None),
    ],
)
def test_any_other_reply_is_raised_as_the_error_that_it_reports(
    start: Start, says: str, kind: type[AutofitError], traceback_text: str | None
) -> None:
    child = start(f"say('error', {says}); time.sleep(100)")
    with pytest.raises(AutofitError, match="gone") as caught:
        asked(child, {"do": "go"}, "briefing", math.inf, lambda phase: None)
    assert type(caught.value) is kind
    assert getattr(caught.value, "traceback_text", None) == traceback_text
    assert session(child.process.pid) == []


def test_a_record_in_a_reply_is_the_one_that_was_sent(start: Start) -> None:
    script = Script(micro_batch_size=8)
    script.take(5, Kind.PARAMETER)
    child, trace = start("time.sleep(100)"), script.trace()
    assert parsed(child, {"kind": "trace", "trace": trace.model_dump(mode="json")}, Trace) == trace
    with pytest.raises(ChildEnded, match="sent no valid trace: Field required"):
        parsed(child, {"kind": "trace", "trace": {"micro_batch_size": 8}}, Trace)
    assert child.ended
