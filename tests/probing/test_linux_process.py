"""A process dies with its parent, and orphans are adopted: each test starts real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from autofit.probing.linux_process import IS_LINUX

pytestmark = pytest.mark.skipif(not IS_LINUX, reason="Linux only")

ROOT = Path(__file__).parents[2]
DIES_WITH = """
import os, signal, time
from autofit.probing.linux_process import die_with
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
from autofit.probing.linux_process import adopt_orphans
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
