"""Where the searches of a night keep their trials, and what becomes of those in the local file."""

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from autofit.core.errors import StudyError
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.history import History
from autofit.nightly.records import VerdictKind
from autofit.nightly.study_place import StudyPlace
from tests.nightly.nights import MachineRoom
from tests.study.samples import measured, run, storage_at


class Server:
    """A database that can go away and return."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._here, self._gone = folder / "server", folder / "gone"
        self._here.mkdir()
        self.url = f"sqlite+pysqlite:///{self._here / 'study.db'}"

    def go_away(self) -> None:
        self._here.rename(self._gone)

    def come_back(self) -> None:
        self._gone.rename(self._here)

    def trials(self) -> int:
        """Number of trials of searches; those of the history are records of nights."""
        storage = storage_at(self._here / "study.db")
        names = [name for name in optuna.get_all_study_names(storage) if not name.startswith("nightly/")]
        return sum(len(optuna.load_study(study_name=name, storage=storage).get_trials()) for name in names)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def room(tmp_path: Path, server: Server) -> MachineRoom:
    return MachineRoom(tmp_path, location=server.url)


@pytest.fixture
def place(tmp_path: Path, server: Server) -> Iterator[StudyPlace]:
    found = StudyPlace(History.open(server.url, tmp_path / "aside"), server.url, tmp_path / "local.db")
    yield found
    found.close()


MERGED = "merged into the study: 1 trial of searches during which it was not available"


def test_a_search_keeps_its_trials_with_the_history_while_it_answers(place: StudyPlace, server: Server) -> None:
    assert place.now() == place.location
    server.go_away()
    local = place.now()
    assert Path(local).parent == server.folder
    assert (place.now(), place.local()) == (local, local)
    server.come_back()
    assert place.now() == place.location


def test_local_trials_are_moved_once_the_history_answers(place: StudyPlace, server: Server) -> None:
    assert place.merge() == []
    run(Path(place.local()), measured())
    server.go_away()
    assert (place.merge(), Path(place.local()).exists()) == ([], True)
    server.come_back()
    assert (place.merge(), place.merge()) == ([MERGED], [])
    assert optuna.get_all_study_names(storage_at(server.folder / "server" / "study.db")) == ["net"]
    assert list(server.folder.glob("local*")) == []


def test_a_file_that_another_process_uses_is_left_to_it(place: StudyPlace, server: Server) -> None:
    other = StudyPlace(History.open(server.url, server.folder / "aside"), server.url, server.folder / "local.db")
    run(Path(other.local()), measured())
    assert place.merge() == []
    assert (other.merge(), place.merge()) == ([MERGED], [])


def test_what_a_killed_process_left_is_merged_by_the_next(place: StudyPlace, server: Server) -> None:
    run(server.folder / "local.0123456789ab.db", measured())
    assert place.merge() == [MERGED]


def test_a_local_file_that_cannot_be_read_is_set_aside_and_the_others_are_merged(
    place: StudyPlace, server: Server
) -> None:
    (server.folder / "local.00.db").write_bytes(b"not a database, but something that somebody may want to have back")
    run(server.folder / "local.01.db", measured())
    notes = place.merge()
    assert "local.00.damaged could not be merged into the study" in notes[0]
    assert notes[1:] == [MERGED]
    assert (server.folder / "local.00.damaged").exists()
    assert place.merge() == []


@pytest.mark.parametrize("run", [1, 2, 5])
def test_a_search_goes_on_in_a_local_study_if_the_database_goes_away_and_its_trials_return(
    room: MachineRoom, server: Server, run: int
) -> None:
    room.add("b")
    room.night()
    job, left = room.add("a", accepted=None), [run]

    def lose(name: str, plan: Plan, purpose: Purpose) -> None:
        left[0] -= name == "a"
        if left[0] == 0:
            server.go_away()

    room.before_run = lose
    result = room.night(only=("a",))
    assert job.plan.exists()
    assert "began again in a local study" in " ".join(result.records[0].notes)
    server.come_back()
    left[0] = 10_000
    before = server.trials()
    result = room.night()
    assert any("merged into the study: " in note for note in result.notes)
    assert server.trials() > before
    assert not list(room.file.local_study.parent.glob("*.aside.*.db*"))
    assert [record.verdict.kind for record in room.records("a")] == [VerdictKind.CANNOT_COMPARE] * 2


def test_a_database_that_answers_but_refuses_to_be_written_costs_no_search(
    room: MachineRoom, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, create = room.add("a", accepted=None), RDBStorage.create_new_trial

    def refused(storage: RDBStorage, study: int, template: FrozenTrial | None = None) -> int:
        if "server" in storage.url:
            raise StorageInternalError("cannot execute INSERT in a read-only transaction")
        return create(storage, study, template)

    monkeypatch.setattr(RDBStorage, "create_new_trial", refused)
    result = room.night()
    assert result.exit_code == 0
    assert job.plan.exists()
    assert any("read-only transaction" in note for note in result.records[0].notes)


def test_a_change_is_tuned_for_in_the_same_night_if_the_database_went_away_after_it_began(
    room: MachineRoom, server: Server
) -> None:
    room.add("a")
    room.night()
    room.versions = {"torch": "2.14.0"}

    def lose(name: str, plan: Plan, purpose: Purpose) -> None:
        room.before_run = lambda name, plan, purpose: None
        server.go_away()

    room.before_run = lose
    (record,) = room.night().records
    assert "torch" in record.tuned


def test_while_the_history_is_away_a_job_is_tuned_in_a_local_study_and_the_exit_code_says_so(
    room: MachineRoom, server: Server
) -> None:
    job = room.add("a", accepted=None)
    server.go_away()
    result = room.night()
    assert result.exit_code == StudyError.exit_code
    assert "is not available" in result.notes[0]
    assert result.records[0].tuned
    assert job.plan.exists()
    assert list(room.file.local_study.parent.glob("*.aside.*.db"))


def test_without_the_history_no_job_is_said_to_be_in_its_first_night(room: MachineRoom, server: Server) -> None:
    room.add("a")
    room.night()
    server.go_away()
    (record,) = room.night().records
    assert record.verdict.kind is VerdictKind.CANNOT_COMPARE
    assert record.verdict.reason == "the earlier nights are not known, because the history is not available"
