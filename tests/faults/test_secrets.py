"""F59, defect 7: what users' code prints may hold keys. It is in a log for its owner, and in nothing that is shared."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from autofit.cli.tune import _log
from autofit.probing.remote.child import MOST_BYTES, OutputLog, last_exception
from tests.probing.remote.fake_worker import PYTHON

ROOT = Path(__file__).parents[2]
CANARY = "canary-5f3a9c"
TRAIN = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

def step(model, batch):
    print(dict(os.environ), file=sys.stderr)
    end = {"abort": os.abort, "exit": lambda: os._exit(0), "hang": lambda: time.sleep(300)}
    end.get(os.environ["ORDER"], dict)()
    if os.environ["ORDER"] == "raise":
        raise RuntimeError(f"no access with PLAIN_API_KEY={os.environ['PLAIN_API_KEY']} to https://me:{os.environ['PLAIN']}@host")
    return model(batch[0]).square().mean()

def make_workload():
    print(os.environ)
    if os.environ["ORDER"] == "abort at once":
        os.abort()
    loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
    return {"model": torch.nn.Linear(8, 4), "loader": loader, "step_fn": step, "global_batch_size": 8}
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["good", "abort", "abort at once", "hang", "raise"])
@pytest.mark.fault("F22", "F59")
def test_defect_07_what_the_users_code_prints_is_in_no_plan_study_json_or_terminal(tmp_path: Path, order: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [PYTHON, "-P", "-m", "autofit", "tune", "train.py", "--json", "--strategies", "batching"]
    command += ["--memory", "1GiB", "--trials", "1", "-o", "plan.yaml", *(["--time", "25s"] if order == "hang" else [])]
    environment = {**os.environ, "ORDER": order, "PLAIN": CANARY, "PLAIN_API_KEY": CANARY}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (order == "good"), done.stderr
    assert done.returncode != 1, done.stderr
    assert CANARY not in done.stdout + done.stderr
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    log = tmp_path / ".autofit" / "study.journal.log"
    assert kept == [log]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    if order not in ("good", "raise"):
        assert str(log) in done.stderr


@pytest.mark.fault("F60")
def test_defect_07_the_log_is_its_owners_is_bounded_and_is_kept_only_where_it_belongs(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "new" / "study.log")
    assert log.location() == ""
    for _ in range(40):
        log.write(b"x" * 2**16, b"the last")
    assert log.location() == f"its output is in {tmp_path}/new/study.log"
    log.close()
    path = tmp_path / "new" / "study.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(path.read_bytes()) <= MOST_BYTES
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused = OutputLog(tmp_path / "link")
    refused.write(b"secret", b"")
    assert refused.location().startswith("its output could not be kept")
    assert not (tmp_path / "elsewhere").exists()


def test_the_log_is_no_file_that_the_user_has_already(tmp_path: Path) -> None:
    """`--study train.journal` emptied a `train.log` beside it."""
    assert _log(tmp_path / "train.journal") == tmp_path / "train.journal.log"
    assert _log("/") is None
    path = tmp_path / "train.journal.log"
    path.write_bytes(b"epoch 1: loss 0.3\n" * 10**5)
    before = path.read_bytes()
    log = OutputLog(path)
    log.write(b"x" * 2**16, b"the last")
    assert "train.journal.log already exists and is not a log of autofit's" in log.location()
    assert path.read_bytes() == before
    path.unlink()
    for text in (b"first", b"second"):  # one of its own is gone on with
        again = OutputLog(path)
        again.write(text, text)
        again.close()
    assert path.read_bytes().count(b"--- printed by your code from ") == 2


def test_defect_07_a_temporary_log_goes_unless_somebody_was_told_of_it() -> None:
    unknown, known = OutputLog(), OutputLog()
    for log in (unknown, known):
        log.write(b"printed", b"")
    path = Path(known.location().removeprefix("its output is in "))
    assert unknown._path is not None
    for log in (unknown, known):
        log.close()
    assert path.read_bytes().endswith(b"printed")
    assert not unknown._path.exists()
    path.unlink()


def test_defect_07_only_the_last_line_of_an_exception_is_shown_and_that_made_safe() -> None:
    assert last_exception("PLAIN=1\nlast words") == ""
    assert last_exception("Traceback\n  File x\nValueError: found\x1b[31m\u202e 3 for API_KEY=abc\n") == (
        "ValueError: found 3 for API_KEY=***"
    )
    assert len(last_exception("ValueError: " + "x" * 3000)) <= 240
