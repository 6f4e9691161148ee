"""A process dies with its parent, and orphans are adopted: each test starts real processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autofit import linux_process
from autofit.linux_process import IS_LINUX, allocator_option, device_files, thread_count

pytestmark = pytest.mark.skipif(not IS_LINUX, reason="Linux only")

ROOT = Path(__file__).parents[2]
DIES_WITH = """
import os, signal, time
from autofit.linux_process import die_with
parent = os.getpid()
if os.fork() == 0:
    {link}
    print(os.getpid(), flush=True)
    time.sleep({sleeps_s})
    print("survived", flush=True)
    os._exit(0)
time.sleep({waits_s})
os.kill(parent, signal.SIGKILL)
"""
ADOPTS = """
import os, time
from autofit.linux_process import adopt_orphans
{adopt}
read, write = os.pipe()
if os.fork() == 0:
    middle = os.getpid()
    if os.fork() == 0:
        while os.getppid() == middle: time.sleep(0.01)
        os.write(write, str(os.getppid()).encode())
        os._exit(0)
    os._exit(0)
os.wait()
print(int(os.read(read, 20)) == os.getpid())
"""


def output(program: str) -> str:
    """Returns what a program and its children print until all of them have ended."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT).stdout


def test_a_child_dies_with_its_parent() -> None:
    assert "survived" not in output(DIES_WITH.format(link="die_with(parent)", sleeps_s=30, waits_s=1))


def test_without_the_link_it_would_survive() -> None:
    assert "survived" in output(DIES_WITH.format(link="pass", sleeps_s=1, waits_s=0.2))


def test_a_child_ends_at_once_if_its_parent_is_already_gone() -> None:
    printed = output(DIES_WITH.format(link="time.sleep(0.5); die_with(parent)", sleeps_s=0, waits_s=0))
    assert printed == ""


@pytest.mark.parametrize(("adopt", "adopted"), [("adopt_orphans()", "True"), ("pass", "False")])
def test_orphans_are_adopted_on_request(adopt: str, adopted: str) -> None:
    assert output(ADOPTS.format(adopt=adopt)).strip() == adopted


ENDS_WITH = """
import os, sys, time
from autofit.linux_process import end_with
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    time.sleep({late_s})
    end_with(read)
    print("linked", flush=True)
    while True: pass
os.close(read)
time.sleep(0.3)
os.close(write)
_, status = os.wait()
print(os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 1)
"""


@pytest.mark.parametrize(("late_s", "said"), [(0.0, "linked\nTrue"), (1.0, "True")])
def test_a_process_that_is_busy_ends_with_the_other_end_of_a_pipe(late_s: float, said: str) -> None:
    command = [sys.executable, "-c", ENDS_WITH.format(late_s=late_s)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=60)
    assert run.stdout.strip() == said


def test_threads_are_counted() -> None:
    before, halt = thread_count(), threading.Event()
    thread = threading.Thread(target=halt.wait)
    thread.start()
    assert thread_count() == before + 1
    halt.set()
    thread.join()


def test_an_open_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_files() == []
    with open(os.devnull, "rb"):
        monkeypatch.setattr(linux_process, "_DEVICE_FILES", ("/dev/null",))
        assert os.devnull in device_files()


def test_glibc_has_an_option_for_its_allocator() -> None:
    option = allocator_option()
    assert option is None or option(-1, 2**17) == 1
