"""A forked process gets what a fresh interpreter would have of its own."""

import os
import random
import subprocess
import sys

import numpy
import pytest
import torch

from autofit.probing.remote import forked_state
from autofit.probing.remote.target import HOST_LIMIT_ENVIRONMENT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def test_only_the_variables_of_the_allocator_can_be_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forked_state.can_set({})
    assert forked_state.can_set(HOST_LIMIT_ENVIRONMENT)
    assert not forked_state.can_set({**HOST_LIMIT_ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""})
    monkeypatch.setattr(forked_state, "allocator_option", lambda: None)
    assert forked_state.can_set({})
    assert not forked_state.can_set(HOST_LIMIT_ENVIRONMENT)


FREES = """
from autofit.probing.remote import forked_state
from autofit.probing.remote.target import HOST_LIMIT_ENVIRONMENT
import ctypes, os, re
def held():
    return int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(2**24))  # from here on glibc takes 16 MiB from the heap, unless it is told otherwise
forked_state.set_variables(HOST_LIMIT_ENVIRONMENT if "told" in os.sys.argv else {})
first, second, before = libc.malloc(2**23), libc.malloc(2**10), held()
libc.free(first)
print(before - held() >= 8, "MALLOC_TRIM_THRESHOLD_" in os.environ)
"""


@pytest.mark.parametrize(("told", "expected"), [("told", "True True"), ("", "False False")])
def test_the_allocator_returns_freed_memory_once_it_is_told(told: str, expected: str) -> None:
    run = subprocess.run([sys.executable, "-c", FREES, told], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == expected


@pytest.mark.fault("F30")
def test_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "new")
    monkeypatch.setenv("ADDED", "new")
    forked_state.restore({"CHANGED": "old", "ADDED": None, "NEVER": None})
    assert os.environ["CHANGED"] == "old"
    assert {"ADDED", "NEVER"}.isdisjoint(os.environ)


def test_seeds_are_drawn_and_those_of_devices_stay() -> None:
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        seeds = set()
        for _ in range(2):
            forked_state.renew()
            seeds.add((torch.initial_seed(), float(numpy.random.rand())))
        assert len({torch_seed for torch_seed, _ in seeds}) == len({drawn for _, drawn in seeds}) == 2
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OPENBLAS_NUM_THREADS": "many", "OMP_NUM_THREADS": "2"}, 2),
        ({"OPENBLAS_NUM_THREADS": "0"}, None),
        ({}, None),
    ],
)
def test_openblas_has_the_threads_of_the_environment(
    variables: dict[str, str], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert forked_state.blas_threads() == (count or len(os.sched_getaffinity(0)))


THREADS = """
import os
import numpy
from autofit.probing.remote import forked_state
from autofit.linux_process import thread_count
before = thread_count()
os.environ["OPENBLAS_NUM_THREADS"] = "3"
forked_state.renew()
a = numpy.random.rand(600, 600)
a @ a
print(before, thread_count())
"""


def test_the_loaded_openblas_starts_its_threads_then() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", THREADS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.split() == ["1", "3"]
