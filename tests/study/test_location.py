"""Where studies can be kept, what is refused, and that no secret is shown."""

import multiprocessing
import resource
import sqlite3
from pathlib import Path

import optuna
import pytest

from autofit.core.errors import StudyError, UsageError
from autofit.core.trial import Purpose
from autofit.study.location import Place
from tests.study.samples import PLAN, measured, reopen, storage_at


def refused(location: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        reopen(location)
    text = str(caught.value)
    assert "found" in text
    assert "expected" in text
    return text


@pytest.mark.parametrize("location", [None, ":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory(location: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = reopen(location)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert study.location == "memory"
    assert list(tmp_path.iterdir()) == []


def test_a_path_and_its_sqlite_url_are_the_same_study(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(db.parent)
    study = reopen(f"sqlite:///{db}")
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    for location in (db, str(db), "s.db", "sqlite:///s.db"):
        again = reopen(location)
        assert (len(again.earlier()), again.location) == (1, str(db))


def test_a_relative_path_stays_where_it_was(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(db.parent)
    study = reopen("s.db")
    monkeypatch.chdir("/")
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert len(reopen(db).earlier()) == 1


def test_names_that_mean_something_in_a_url(tmp_path: Path) -> None:
    path = tmp_path / "a b{c}%20d?mode=ro#e@f:g.db"
    study = reopen(path)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert len(reopen(path).earlier()) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_study_error_and_what_was_recorded_is_kept(db: Path) -> None:
    study = reopen(db)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    number = study.begin(PLAN.replace(micro_batch_size=2), Purpose.PROBE)
    long = measured().model_copy(update={"traceback_text": "x" * 2**18})
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (db.stat().st_size, kept[1]))  # what a full disk is to SQLite
    try:
        with pytest.raises(StudyError, match=r"could not be written: found .*expected .*earlier records"):
            study.finish(number, long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert len(reopen(db).earlier()) == 1
    assert study.finish(number, long).outcome == long  # once there is space again
    assert len(reopen(db).earlier()) == 2


def test_a_database_of_a_newer_optuna_is_refused(db: Path) -> None:
    connection = sqlite3.connect(db)
    connection.execute("update alembic_version set version_num = 'v99.0.0.a'")
    connection.commit()
    connection.close()
    refused(db)


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        ("postgresql+psycopg://db.example/net", "postgresql+psycopg://db.example/net", []),
        ("postgresql+psycopg://bob:tiger@h:5432/n", "postgresql+psycopg://***@h:5432/n", ["bob", "tiger"]),
        ("mysql://bob@h/n?sslpassword=lion&t=tiger", "mysql://***@h/n?sslpassword=***&t=***", ["lion", "tiger"]),
        ("mysql://bob:li%40on@h/n", "mysql://***@h/n", ["bob", "li%40on", "li@on"]),
        ("mysql://bob:li@on/tiger@h/n", "mysql://***@h/n", ["li@on/tiger"]),
        ("mysql://bob:tiger?lion@h/n", "mysql://***", ["bob", "tiger?lion"]),
        ("mysql://h/n?tiger", "mysql://h/n?***", ["tiger"]),
        ("mysql://h/n?t=a%2Bb@tiger", "mysql://***", ["a%2Bb@tiger", "a+b@tiger"]),
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, shown: str, secrets: list[str]) -> None:
    place = Place.of(url)
    assert place.shown == shown
    with pytest.raises(StudyError) as caught, place.guarded("opened"):
        raise RuntimeError(f"cannot reach {url} with {' and '.join(secrets)}, sorry")
    assert shown in str(caught.value)
    assert "sorry" in str(caught.value)
    assert not [secret for secret in secrets if secret in str(caught.value)]


@pytest.mark.parametrize(
    "url", ["nosuch://bob:lion@h/n?token=tiger", "https://bob:lion@h/n", "mysql+nosuch://bob:lion@h/{n}", "://"]
)
def test_unknown_databases_are_refused_without_secrets(url: str) -> None:
    text = refused(url)
    assert "postgresql+psycopg://host/database" in text
    assert not [secret for secret in ("bob", "lion", "tiger") if secret in text]


def test_our_own_mistakes_are_not_hidden() -> None:
    with pytest.raises(AssertionError), Place.of(None).guarded("opened"):
        raise AssertionError("a defect of autofit, not of the storage")


def _open_at_once(path: Path, barrier: "multiprocessing.synchronize.Barrier") -> None:
    barrier.wait()
    study = reopen(path)
    for _ in range(4):
        study.finish(study.begin(PLAN, Purpose.PROBE), measured())


@pytest.mark.leaves("multiprocessing keeps the memory of a barrier until the process ends")
def test_processes_that_make_the_same_study_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_open_at_once, args=(tmp_path / "s.db", barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    kept = optuna.load_study(study_name="net", storage=storage_at(tmp_path / "s.db")).trials
    assert [trial.number for trial in kept] == list(range(12))
    assert all(trial.state.is_finished() and len(trial.constraints) == 2 for trial in kept)


@pytest.mark.parametrize(("location", "found"), [("", "is empty"), ("~no-such-user/study.db", "cannot be found")])
def test_a_place_that_cannot_be_is_refused(location: str, found: str) -> None:
    """An unset variable was a study in memory without a word, an unknown user an internal error."""
    with pytest.raises(UsageError, match=found):
        Place.of(location)
