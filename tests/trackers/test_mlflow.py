"""A search in MLflow's database, read by MLflow's own client; and servers that are away."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from autofit.trackers.base import Ending
from autofit.trackers.following import Background
from autofit.trackers.mlflow import Mlflow
from autofit.trackers.run_log import RunLog
from tests.fakes.trackers import no_documents
from tests.recorded import recorded_search

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
mlflow: Any = pytest.importorskip("mlflow", reason="needs the package mlflow-skinny")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaves("MLflow keeps its connections to a database"),
]

TELEMETRY = "MLFLOW_DISABLE_TELEMETRY"


def run_of(uri: str) -> tuple[Any, Any]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("autofit").experiment_id])
    return client, run


def test_a_search_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/store.db"
    tracker = Mlflow.make(uri)
    tracker.connect()
    log = RunLog(tracker, lambda result: {"notes.txt": "more"})
    result = recorded_search(listen=[log])
    log.close()
    client, run = run_of(uri)
    r = result.answer
    assert r is not None
    assert r.gain is not None
    assert (run.info.status, run.info.run_name) == ("FINISHED", "train.py:make_resnet")
    assert run.data.tags["autofit.ending"] == "finished"
    assert run.data.params["memory_budget_bytes"] == str(r.budget.memory_bytes)
    assert run.data.metrics["result/gain"] == pytest.approx(r.gain.value)
    history = client.get_metric_history(run.info.run_id, "trial/throughput_per_s")
    probes = [t.outcome.measurement for t in result.trials if t.purpose == "probe"]
    assert [metric.step for metric in history] == list(range(1, len(probes) + 1))
    assert [m.value for m in history] == pytest.approx([r.objective.score(m) for m in probes if m is not None])
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"autofit.yaml", "notes.txt", "result"}


@pytest.mark.parametrize(("ending", "status"), [(Ending.FAILED, "FAILED"), (Ending.INTERRUPTED, "KILLED")])
def test_the_status_says_how_a_search_ended(
    ending: Ending, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    uri = f"sqlite:///{tmp_path}/store.db"  # MLflow keeps the connection to a relative path
    tracker = Mlflow.make(uri)
    tracker.connect()
    tracker.open("", {f"p{number}": number for number in range(250)})
    tracker.close(ending)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.status == status
    assert len(run.data.params) == 250


def test_the_users_active_run_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/theirs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with mlflow.start_run() as active:
        tracker = Mlflow.make("")
        tracker.connect()
        tracker.open("", {"a": 1})
        tracker.log(1, {"m": 1.0}, {})
        assert mlflow.active_run().info.run_id == active.info.run_id
        tracker.close(Ending.FINISHED)
    _, run = run_of(uri)
    assert run.data.metrics == {"m": 1.0}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_a_server_that_is_away_is_one_warning_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.trackers.mlflow.getproxies", dict)
    said: list[str] = []
    began_s = time.monotonic()
    listener = Background(Mlflow.make(f"http://127.0.0.1:{free_port()}"), said.append, no_documents, 30.0)
    result = recorded_search(listen=[listener])
    listener.close()
    assert result.answer is not None
    assert time.monotonic() - began_s < 20
    assert len(said) == 1
    assert "the tracker mlflow failed and gets no further events: ConnectionRefusedError" in said[0]


def test_a_server_that_accepts_and_does_not_answer_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.trackers.mlflow.getproxies", dict)
    monkeypatch.setattr("autofit.trackers.following.FLUSH_S", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said: list[str] = []
        tracker = Mlflow.make(f"http://127.0.0.1:{silent.getsockname()[1]}")
        began_s = time.monotonic()
        listener = Background(tracker, said.append, no_documents, 0.2)
        recorded_search(listen=[listener])
        listener.close()
        assert time.monotonic() - began_s < 15
        assert len(said) == 1
        listener._thread.join(30)
        assert not listener._thread.is_alive()


def test_statistics_stay_off_and_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    monkeypatch.setattr("autofit.trackers.base.import_module", lambda _: seen.append(os.environ[TELEMETRY]))
    monkeypatch.delenv(TELEMETRY, raising=False)
    Mlflow.make("")
    assert TELEMETRY not in os.environ
    monkeypatch.setenv(TELEMETRY, "false")
    Mlflow.make("")
    assert os.environ[TELEMETRY] == "false"
    assert dict.fromkeys(seen) == {"true": None, "false": None}
