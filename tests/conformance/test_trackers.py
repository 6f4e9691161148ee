"""What every tracker keeps. A member whose package is not installed is skipped by name."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from autofit import trackers
from autofit.core.errors import UsageError
from autofit.trackers.base import Ending, Tracker
from autofit.trackers.following import Background
from autofit.trackers.run_log import RunLog
from tests.fakes.trackers import no_documents
from tests.recorded import recorded_search

HOSTILE = "</script><b>\x1b[31m |`*_ \u202e" + 10_000 * "x"
WHERE = {"mlflow": "sqlite:///{folder}/store.db"}
"""Places to log to in the working directory. Other members log below it by default."""

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of foreign packages
    pytest.mark.leaves("foreign packages keep threads, connections and service processes"),
]


@pytest.fixture(params=trackers.members(), ids=lambda member: member.name)
def member(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Tracker]:
    """A tracker class whose package is installed, in an empty working directory."""
    found: type[Tracker] = request.param
    monkeypatch.chdir(tmp_path)
    try:
        found.make("")
    except UsageError as error:
        pytest.skip(f"{found.name}: {error}")
    return found


def made(member: type[Tracker]) -> Tracker:
    return member.make(WHERE.get(member.name, "").format(folder=Path.cwd()))


def test_names_are_unique_and_can_be_written_on_a_command_line() -> None:
    names = [member.name for member in trackers.members()]
    assert len(set(names)) == len(names)
    assert all(":" not in name and name == name.strip() != "" for name in names)


@pytest.mark.parametrize("each", trackers.members(), ids=lambda each: each.name)
def test_a_missing_package_is_a_usage_error_that_says_how_to_install_it(
    each: type[Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not each.modules:
        pytest.skip(f"{each.name} needs no package")
    for module in each.modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"found no usable package .* Install it: ") as error:
        trackers.make(each.name)
    assert not each.extra or f".[{each.extra}]" in str(error.value)


def test_a_whole_search_is_logged_without_a_warning(member: type[Tracker], tmp_path: Path) -> None:
    listener = Background(made(member), pytest.fail, no_documents, 60.0)
    recorded_search(listen=[listener])
    listener.close()
    assert any(tmp_path.iterdir()), "an offline tracker writes into the working directory"


def test_hostile_texts_are_logged(member: type[Tracker]) -> None:
    tracker = made(member)
    log = RunLog(tracker, lambda result: {"notes.txt": "\u202e</script>\n"})
    result = recorded_search()
    tracker.connect()
    tracker.open(HOSTILE[:200], {"a": HOSTILE, "b|c=\u00e9*": 1, "": ""})
    tracker.log(1, {"trial/x": 1.0}, {"trial/reason": HOSTILE})
    tracker.log(2, {}, {})
    log._conclude(result)
    tracker.close(Ending.FAILED)


@pytest.mark.parametrize("ending", Ending)
def test_a_run_without_steps_can_be_closed(member: type[Tracker], ending: Ending) -> None:
    tracker = made(member)
    tracker.connect()
    tracker.open("", {})
    tracker.close(ending)


def test_nothing_else_in_the_process_changes(member: type[Tracker]) -> None:
    def state() -> tuple[object, ...]:
        handlers = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), threading.excepthook)
        # W&B gives the address of its service to child processes by WANDB_SERVICE.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(member.name.upper())}
        return environment, os.getcwd(), handlers, sys.stdout, sys.stderr, sys.excepthook

    before = state()
    tracker = made(member)
    tracker.connect()
    tracker.open("", {"a": 1})
    inside = state()
    tracker.close(Ending.FINISHED)
    assert before == inside == state()


def test_two_searches_are_two_runs(member: type[Tracker], tmp_path: Path) -> None:
    def files() -> int:
        return sum(path.is_file() for path in tmp_path.rglob("*"))

    counts = []
    for _ in range(2):
        tracker = made(member)
        log = RunLog(tracker, no_documents)
        tracker.connect()
        tracker.open("same", {"a": 1})
        log._conclude(recorded_search())
        tracker.close(Ending.FINISHED)
        counts.append(files())
    assert counts[1] > counts[0]
