"""What every test shares."""

import atexit
import functools
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import alembic.util
import pytest
import torch

from autofit.devices import base
from autofit.probing import timing
from autofit.search import race_and_proof, search
from tests.fakes import FakeTime
from tests.leaks import State

# Two threads on a machine that also does other work wait for each other at every operator: one is faster and steadier.
torch.set_num_threads(1)

# Tests of several checkouts run side by side on one machine, and start tuners: these do not wait for each other.
os.environ["AUTOFIT_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="autofit-tests-")
atexit.register(shutil.rmtree, os.environ["AUTOFIT_RUNTIME_DIR"], ignore_errors=True)

# Compiling takes seconds to minutes. Searches in tests leave it out, except in tests of it (fixture `compiler`).
os.environ["CXX"] = "no-compiler-in-tests"

# A shell that starts the tests in the background has them, and the processes that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs files with slow tests first: side by side, the last file then keeps no process waiting for long."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the test a C++ compiler, as users have one, and discards what was compiled."""
    monkeypatch.delenv("CXX")
    config: Any = importlib.import_module("torch._inductor.config")  # it has read the variable if it was loaded before
    torch.compiler.reset()
    found = {"cpp.cxx": (None, "clang++" if sys.platform == "darwin" else "g++"), "compile_threads": 1}
    with config.patch(found):
        yield
    torch.compiler.reset()


BRIEF: tuple[tuple[ModuleType, str, float], ...] = ((search, "TRACING_S", 0.0), (race_and_proof, "RACE_S", 0.5))
"""What makes a search in a test's process brief: only the baseline is traced, and an undecided race ends early."""


@pytest.fixture(scope="session", autouse=True)
def searches_are_brief() -> Iterator[list[tuple[ModuleType, str, float]]]:
    """Makes all searches in this process brief; gives what makes them whole again."""
    whole = [(module, name, getattr(module, name)) for module, name, _ in BRIEF]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in BRIEF:
            patch.setattr(module, name, value)
        yield whole


@pytest.fixture
def whole_search(searches_are_brief: list[tuple[ModuleType, str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the test searches that trace and race as long as a user's do, for what it asserts of them."""
    for module, name, value in searches_are_brief:
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="session", autouse=True)
def migrations_are_read_once() -> Iterator[None]:
    """Reads the files of Optuna's migrations once for all studies: reading them is half of the time to open one.

    An `env.py` is run each time: it is what migrates a database of MLflow.
    """
    load = alembic.util.load_python_file
    once = functools.cache(load)

    def loaded(folder: str, name: str) -> ModuleType:
        return load(folder, name) if name == "env.py" else once(folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alembic.util, "load_python_file", loaded)
        yield


@pytest.fixture(scope="module", autouse=True)
def heap_is_frozen() -> None:
    """Excludes what the tests' modules hold from garbage collection: 10 ms each time instead of 500."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def heap_is_unfrozen_at_the_end() -> Iterator[None]:
    """Leaves a usual heap to plugins of pytest: Hypothesis, first imported after the tests, fails with a frozen one."""
    yield
    gc.unfreeze()


@pytest.fixture
def heap_not_frozen() -> Iterator[None]:
    """Gives the test the heap that a user's process has, for what it asserts of collections and of freezing."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A study of the test's own, without trials."""
    from tests.study.samples import reopen  # noqa: PLC0415  # Optuna, for tests that need it

    reopen(tmp_path / "s.journal")
    return tmp_path / "s.journal"


@pytest.fixture
def step_clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """The clock that steps are timed by, standing still: a test's own model or step says how long it takes.

    Without it the seconds of a step are those of a machine that also does other work: a test cannot know which plan is
    the fastest, how many steps are timed, or who is raced. Only for steps in the test's own process.
    """
    clock = FakeTime()
    monkeypatch.setattr(base, "perf_counter", clock)
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a descriptor or a switch of torch behind.

    `@pytest.mark.leaves("why")` excuses a test that has to.
    """
    before = State.now()
    yield
    if not request.node.get_closest_marker("leaves"):
        assert before.left_over() == []
