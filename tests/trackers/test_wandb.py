"""A search as an offline run of Weights & Biases, read from the run's file; and a server that is away."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit.trackers import wandb as adapter
from autofit.trackers.following import Background
from autofit.trackers.run_log import RunLog
from autofit.trackers.wandb import Wandb
from tests.fakes.trackers import no_documents
from tests.recorded import recorded_search

wandb: Any = pytest.importorskip("wandb", reason="needs the package wandb")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaves("W&B keeps its service process and its threads"),
]
FILE_HEADER, RECORD_HEADER, BLOCK = 7, 7, 32 * 1024
"""The format of a run's file is that of LevelDB's log: https://github.com/google/leveldb/blob/main/doc/log_format.md"""


def records(path: Path) -> Iterator[Any]:
    """Yields the records of a run's file."""
    proto: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), FILE_HEADER, b""
    while at + RECORD_HEADER <= len(data):
        if BLOCK - at % BLOCK < RECORD_HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + RECORD_HEADER])
        whole += data[at + RECORD_HEADER : at + RECORD_HEADER + length]
        at += RECORD_HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield proto.Record.FromString(whole)
            whole = b""


def finished(path: Path) -> list[Any]:
    """Returns the records of a run's file once the service process has written the last one."""
    end_s = time.monotonic() + 20
    while True:
        found = list(records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < end_s
        time.sleep(0.05)


def items(found: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_search_is_read_back(tmp_path: Path) -> None:
    log = RunLog(Wandb.make("mine"), lambda result: {"notes.txt": "more"})
    result = recorded_search(listen=[log])
    log.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found = finished(file)
    (run,) = (record.run for record in found if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name) == ("mine", "train.py:make_resnet")
    r = result.answer
    assert r is not None
    assert r.gain is not None
    assert items(run.config.update)["memory_budget_bytes"] == r.budget.memory_bytes
    history = [items(record.history.item) for record in found if record.WhichOneof("record_type") == "history"]
    steps = [entry for entry in history if "trial/throughput_per_s" in entry]
    probes = [t.outcome.measurement for t in result.trials if t.purpose == "probe"]
    assert [entry["trial/step"] for entry in steps] == list(range(1, len(probes) + 1))
    assert [entry["trial/throughput_per_s"] for entry in steps] == pytest.approx(
        [r.objective.score(measurement) for measurement in probes if measurement is not None]
    )
    assert all(entry["trial/status"] == "measured" for entry in steps)
    summary: dict[str, Any] = {}
    for record in found:
        if record.WhichOneof("record_type") == "summary":
            summary |= items(record.summary.update)
    assert summary["result/gain"] == pytest.approx(r.gain.value)
    assert summary["result/ending"] == "finished"
    files = {
        entry.path
        for record in found
        if record.WhichOneof("record_type") == "artifact"
        for entry in record.artifact.manifest.contents
    }
    assert {"autofit.yaml", "notes.txt"} <= files


def test_the_users_run_is_left_alone() -> None:
    theirs = wandb.init(mode="offline", project="theirs", settings=wandb.Settings(silent=True, console="off"))
    try:
        log = RunLog(Wandb.make(""), no_documents)
        recorded_search(listen=[log])
        log.close()
        assert wandb.run is theirs
        theirs.log({"x": 1})
    finally:
        theirs.finish()


def test_a_server_that_is_away_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    monkeypatch.setattr(adapter, "INIT_S", 2.0)
    monkeypatch.setattr("autofit.trackers.following.FLUSH_S", 30.0)
    said: list[str] = []
    began_s = time.monotonic()
    listener = Background(Wandb.make(""), said.append, no_documents, 1.0)
    result = recorded_search(listen=[listener])
    listener.close()
    assert result.answer is not None
    assert time.monotonic() - began_s < 60
    assert len(said) == 1
    assert "the tracker wandb failed and gets no further events" in said[0]
