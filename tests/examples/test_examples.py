"""Each example keeps what its docstring promises, tuned in process and run as a script."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch

import autofit
from autofit import api, devices
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.core.units import parse_bytes
from autofit.guard import digest_of
from autofit.guard.digest import fingerprint
from autofit.probing.local_bench import LocalBench
from tests.examples.loading import EXAMPLES, load
from tests.fakes import FakeTime

NAMES = ("gpt", "convnet", "tabular", "huggingface")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On a machine that other processes use too, two threads that wait for each other take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def a_second_per_run() -> Iterator[None]:
    """Makes a time budget one of runs, so that every machine has the time for the same ones."""
    time, evaluate = FakeTime(), LocalBench.evaluate

    def timed(bench: LocalBench, plan: Plan, purpose: Purpose) -> Outcome:
        time.advance(1.0)
        return evaluate(bench, plan, purpose)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBench, "evaluate", timed)
        patch.setattr(api, "Clock", lambda limit_s: Clock(time, limit_s))
        yield


@dataclass
class Tuned:
    example: ModuleType
    workload: autofit.Workload
    fit: autofit.Fit
    before: str
    after: str


@pytest.fixture(scope="module", params=NAMES)
def tuned(request: pytest.FixtureRequest, one_thread: None, a_second_per_run: None) -> Tuned:
    example = load(request.param)
    w = example.make_workload()
    optimizer = w.optimizer if isinstance(w.optimizer, torch.optim.Optimizer) else None
    before = digest_of(w.model, optimizer, w.loader)
    fit = autofit.tune(
        w.model,
        w.loader,
        loss_fn=w.loss_fn,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
        max_grad_norm=w.max_grad_norm,
        memory_budget=example.MEMORY,
        time_budget=10,
        device="cpu",
        study=":memory:",
        progress=False,
    )
    return Tuned(example, w, fit, before, digest_of(w.model, optimizer, w.loader))


def test_tuning_leaves_no_trace(tuned: Tuned) -> None:
    assert tuned.after == tuned.before


def test_the_plan_was_proven_inside_the_budget(tuned: Tuned) -> None:
    proof = tuned.fit.proof
    assert proof.worst_steps >= 3
    assert 0 < proof.memory.judged_bytes <= parse_bytes(tuned.example.MEMORY)


def test_the_own_setting_fits_so_that_there_is_a_gain_to_show(tuned: Tuned) -> None:
    assert tuned.fit.baseline.outcome.measured
    assert tuned.fit.gain is not None


def test_a_fixed_global_batch_is_kept_and_a_free_one_is_not_accumulated(tuned: Tuned) -> None:
    wanted = tuned.workload.global_batch_size
    plans = [tuned.fit.plan, tuned.fit.baseline.plan, *(c.plan for c in tuned.fit.alternatives)]
    if wanted is None:
        assert {plan.accumulation_steps for plan in plans} == {1}
    else:
        assert {plan.global_batch_size for plan in plans} == {wanted}


def test_the_plan_trains(tuned: Tuned) -> None:
    w = tuned.workload
    untrained = fingerprint([p.detach() for p in w.model.parameters()])
    with tuned.fit.prepare(w.model, w.loader, w.optimizer) as step:
        losses = [step(batch).item() for batch in islice(step.loader, 3)]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert fingerprint([p.detach() for p in w.model.parameters()]) != untrained


def test_it_says_what_its_docstring_points_at(tuned: Tuned) -> None:
    name = Path(str(tuned.example.__file__)).stem
    refused = {refusal.name for refusal in tuned.fit.recommendation.refused}
    caveats = "\n".join(tuned.fit.caveats)
    if name == "convnet":
        assert "accumulation" in refused
        assert tuned.fit.plan.micro_batch_size == tuned.workload.global_batch_size
    else:
        assert "accumulation" not in refused
        assert "the loss was inferred" in caveats
    changed = tuned.fit.plan.global_batch_size != tuned.fit.baseline.plan.global_batch_size
    assert ("the global batch was free" in caveats) == changed


@pytest.mark.parametrize("name", ["gpt", "tabular", "huggingface"])
def test_the_memory_budget_forbids_the_largest_batch(name: str) -> None:
    example = load(name)
    options = Options(memory_budget=example.MEMORY, strategies=("batching",), enforce=False)
    with LocalBench(example.make_workload(), devices.choose("cpu"), options) as bench:
        space = SearchSpace(bench.briefing.space)
        largest = bench.evaluate(space.at(space.baseline.combination, space.sizes[-1]), Purpose.PROBE)
    assert largest.status is Status.OVER_BUDGET


AS_A_SCRIPT = """
import runpy, sys
import autofit
tune = autofit.tune
autofit.tune = lambda *objects, **choices: tune(*objects, **{**choices, "time_budget": "16s"})
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs an example as its file says, but for the time of its search."""


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_a_script(name: str, tmp_path: Path) -> None:
    if name == "huggingface":
        pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", AS_A_SCRIPT, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,  # where the study is kept
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Proven by 3 whole steps on the worst batch" in " ".join(done.stdout.split())
    assert (tmp_path / ".autofit" / "study.db").is_file()
