"""The parts of the nursery's process; what it does as a whole is tested from the parent's side (remote/)."""

import sys
import threading
from pathlib import Path

import pytest
import torch

from autofit.probing.remote import fork_server
from autofit.probing.remote.fork_server import Imports, unsafe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def test_forking_is_unsafe_with_threads_or_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_VANISH_S", 0.01)
    monkeypatch.setattr(fork_server, "thread_count", lambda: 1)
    assert unsafe() == ""
    monkeypatch.setattr(fork_server, "device_files", lambda: ["/dev/kfd"])
    assert unsafe() == "it has opened a device (/dev/kfd)"
    monkeypatch.setattr(fork_server, "thread_count", lambda: 3)
    assert unsafe() == "it has 3 threads, which a library started"


def test_forking_is_unsafe_once_torch_used_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "thread_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert unsafe() == "it has used a GPU"


def test_a_thread_that_just_ended_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([2, 2, 1, 1])
    monkeypatch.setattr(fork_server, "thread_count", lambda: next(counts))
    assert unsafe() == ""


def test_imports_halt_between_two_modules_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, finish = threading.Event(), threading.Event()
    monkeypatch.setattr(fork_server, "_events", (began, finish), raising=False)
    monkeypatch.setattr(fork_server, "_NICE", 0)
    monkeypatch.setattr(fork_server, "thread_count", lambda: 2)  # whatever else this process runs
    (tmp_path / "halting_one.py").write_text(
        "from autofit.probing.remote import fork_server\nfork_server._events[0].set()\nfork_server._events[1].wait(60)"
    )
    (tmp_path / "halting_two.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports = Imports()
    imports.add(["halting_one", "halting_two"], 0)
    assert began.wait(60)
    threading.Timer(0.2, finish.set).start()
    imports.pause()
    assert "halting_one" in sys.modules
    assert "halting_two" not in sys.modules
    imports.go_on()
    thread = imports._thread
    assert thread is not None
    thread.join(60)
    assert sys.modules.pop("halting_one")
    assert sys.modules.pop("halting_two")


def test_libraries_that_ask_for_gpus_get_the_known_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_NICE", 0)
    monkeypatch.setattr(fork_server, "thread_count", lambda: 2)  # whatever else this process runs
    (tmp_path / "asking_library.py").write_text(
        "import torch\nfound = torch.cuda.is_available(), torch.cuda.device_count()"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = torch.cuda.is_available, torch.cuda.device_count
    imports = Imports()
    imports.add(["asking_library"], 3)
    assert imports._thread is not None
    imports._thread.join(60)
    assert sys.modules.pop("asking_library").found == (True, 3)
    assert (torch.cuda.is_available, torch.cuda.device_count) == before
