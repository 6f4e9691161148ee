"""A search in TensorBoard's format, read by TensorBoard's own reader."""

import json
from pathlib import Path
from typing import Any

import pytest

from autofit.trackers.base import Ending
from autofit.trackers.following import Background
from autofit.trackers.run_log import RunLog
from autofit.trackers.tensorboard import TensorBoard
from tests.fakes.trackers import no_documents
from tests.recorded import recorded_search

reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs the package tensorboard"
)
pytestmark = pytest.mark.filterwarnings("ignore")


def read(folder: Path) -> Any:
    found = reader.EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def text_of(found: Any, tag: str, at: int = 0) -> str:
    text: str = found.Tensors(tag)[at].tensor_proto.string_val[0].decode()
    return text


def test_a_search_is_read_back(tmp_path: Path) -> None:
    log = RunLog(TensorBoard.make(str(tmp_path / "logs")), lambda result: {"notes.txt": "more"})
    result = recorded_search(listen=[log])
    log.close()
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.endswith("_train.py-make_resnet")
    found, r = read(folder), result.answer
    assert r is not None
    assert r.gain is not None
    rates = [event.value for event in found.Scalars("trial/throughput_per_s")]
    probes = [t for t in result.trials if t.purpose == "probe" and t.outcome.measurement is not None]
    assert rates == pytest.approx([r.objective.score(t.outcome.measurement) for t in probes if t.outcome.measurement])
    assert [event.step for event in found.Scalars("trial/gain")] == list(range(1, len(rates) + 1))
    assert found.Scalars("result/gain")[0].value == pytest.approx(r.gain.value)
    assert text_of(found, "trial/status") == "measured"
    assert text_of(found, "result/ending") == Ending.FINISHED
    assert b"memory_budget_bytes" in found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert {path.name for path in folder.iterdir() if "tfevents" not in path.name} == {
        "autofit.yaml", "notes.txt"
    }  # fmt: skip


def test_texts_are_not_read_as_markdown(tmp_path: Path) -> None:
    tracker = TensorBoard.make(str(tmp_path))
    tracker.open("", {"a|b": "<b>*x*"})
    tracker.log(1, {}, {"trial/reason": "<img src=x> [a](b)\nnext"})
    tracker.close(Ending.FAILED)
    found = read(next(tmp_path.iterdir()))
    assert text_of(found, "trial/reason") == "\\<img src=x\\> \\[a\\]\\(b\\)  \nnext"


def test_a_search_in_the_same_second_has_its_own_folder(tmp_path: Path) -> None:
    for _ in range(3):
        tracker = TensorBoard.make(str(tmp_path))
        tracker.open("t", {})
        tracker.close(Ending.FINISHED)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk_is_one_warning_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Full(TensorBoard):
        def log(self, *given: Any) -> None:
            self._writer._writer = Path("/dev/full").open("wb")  # noqa: SIM115  # closed by the writer
            super().log(*given)

    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    said: list[str] = []
    listener = Background(Full.make(str(tmp_path)), said.append, no_documents, 30.0)
    recorded_search(listen=[listener])
    listener.close()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert capfd.readouterr() == ("", "")


def test_each_event_can_be_read_at_once(tmp_path: Path) -> None:
    tracker = TensorBoard.make(str(tmp_path))
    tracker.open("", {})
    tracker.log(1, {"trial/gain": 1.5}, {})
    found = read(next(tmp_path.iterdir()))
    tracker.close(Ending.FINISHED)
    assert [(event.step, event.value) for event in found.Scalars("trial/gain")] == [(1, 1.5)]


def test_a_place_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(json.dumps({}))
    with pytest.raises(OSError, match="f"):
        TensorBoard.make(str(tmp_path / "f")).open("", {})
