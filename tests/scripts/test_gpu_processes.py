"""What the GPU suite rests on: processes that end with it, the check before it, and files written whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.bench import files
from scripts.bench.gpu import preflight, suite

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys
from scripts.bench.gpu import suite
suite.machine = lambda *_: {"device": "Test", "torch": "2.11.0"}
sys.exit(suite.main(["--out", sys.argv[1]], [suite.Stage("pid", "", (sys.argv[2],))]))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no kernel ends a process with its parent")
def test_a_stage_does_not_outlive_a_suite_that_is_killed(tmp_path: Path, sent: int, code: int) -> None:
    script, pid = tmp_path / "pid.py", tmp_path / "pid"
    script.write_text(f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)\n")
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "out"), str(script)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts" / "bench")])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: pid.exists() and pid.read_text().endswith("."))
            process.send_signal(sent)
            assert process.wait(60) == code
        finally:
            process.kill()
    wait_for(lambda: not running(int(pid.read_text()[:-1])))


def running(pid: int) -> bool:
    """Whether there is such a process that is no zombie: in a container nobody may collect an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 60
        time.sleep(0.02)


def test_a_package_that_a_stage_lacks_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("stage_a", "stage_b"):
        (tmp_path / f"{name}.py").write_text("import no_such_module\n")
    path = [str(tmp_path), str(ROOT), str(ROOT / "scripts" / "bench")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    some = [suite.Stage(name, "", ("-m", name)) for name in ("stage_a", "stage_b")]
    assert suite.main(["--out", str(tmp_path / "out"), "--device", "cpu"], some) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "no_such_module (No module named 'no_such_module', imported by stage_a)" in lines[0]
    assert "stage_b" not in lines[0]
    assert not (tmp_path / "out").exists()


def test_what_can_be_imported_is_not_lacking() -> None:
    assert preflight.lacking(["json", "no_such_module"]) == {"no_such_module": "No module named 'no_such_module'"}


def test_a_write_that_breaks_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write(path, '{"a": 1}')
    with pytest.raises(UnicodeEncodeError):
        files.write(path, "half \ud800")
    assert files.read(path) == {"a": 1}
