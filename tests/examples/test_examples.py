"""Each example keeps what its docstring promises, tuned in process and run as a script."""

import io
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import autofit
from autofit import api, devices
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.core.units import parse_bytes
from autofit.guard.object_state import fingerprint
from autofit.probing import probe
from autofit.probing.local_bench import LocalBench
from autofit.probing.timing import Pace
from tests.digests import digest_of
from tests.examples.loading import load
from tests.fakes import FakeTime

FEW_STEPS = {
    Purpose.PROBE: Pace(warmup_most=2, steps_least=2, steps_most=2, seconds=0.0, patience_s=10.0),
    Purpose.BLOCK: Pace(warmup_most=1, steps_least=1, steps_most=1, seconds=0.0, patience_s=10.0),
    Purpose.PROOF: Pace(warmup_most=2, steps_least=3, steps_most=3, seconds=0.0),
}
"""Enough for what is asserted here: nothing is said of how fast a plan is."""
NAMES = ("gpt", "convnet", "tabular", "huggingface", "gan", "ema_teacher")
WHOLE = ("gan", "ema_teacher")
"""Examples whose `update_fn` does the step."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def a_second_per_run() -> Iterator[None]:
    """Makes a time budget one of runs, so that every machine has the time for the same ones, and runs few steps."""
    time, evaluate = FakeTime(), LocalBench.evaluate

    def timed(bench: LocalBench, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        time.advance(1.0)
        return evaluate(bench, plan, purpose, terms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBench, "evaluate", timed)
        patch.setattr(probe, "PACES", FEW_STEPS)
        patch.setattr(api, "Clock", lambda limit_s: Clock(time, limit_s))
        yield


@dataclass
class Tuned:
    """What one run of an example as a script did: its workload, the fit, digests around the search, what it printed."""

    example: ModuleType
    workload: autofit.Workload
    fit: autofit.Fit
    before: str
    after: str
    printed: str
    folder: Path


@pytest.fixture(scope="module", params=NAMES)
def tuned(request: pytest.FixtureRequest, a_second_per_run: None, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Runs the `main` of an example as its file says, but for the length of its search."""
    example, folder, printed = load(request.param), tmp_path_factory.mktemp("run"), io.StringIO()
    workload, tune = example.make_workload(), autofit.tune
    optimizer = workload.optimizer if isinstance(workload.optimizer, torch.optim.Optimizer | dict) else None
    found: list[autofit.Fit] = []
    digests: list[str] = []

    def watched(*objects: Any, **choices: Any) -> autofit.Fit:
        digests.append(digest_of(workload.model, optimizer, workload.loader))
        found.append(tune(*objects, **{**choices, "time_budget": 10, "progress": False}))
        digests.append(digest_of(workload.model, optimizer, workload.loader))
        return found[0]

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)  # where the study is kept
        patch.setattr(example, "make_workload", lambda: workload)
        patch.setattr(autofit, "tune", watched)
        example.main()
    return Tuned(example, workload, found[0], digests[0], digests[1], printed.getvalue(), folder)


def test_tuning_leaves_no_trace(tuned: Tuned) -> None:
    assert tuned.after == tuned.before


def test_the_plan_was_proven_inside_the_budget(tuned: Tuned) -> None:
    proof = tuned.fit.proof
    assert proof.worst_steps >= 3
    assert 0 < proof.memory.judged_bytes <= parse_bytes(tuned.example.MEMORY)


def test_the_own_setting_fits_so_that_there_is_a_gain_to_show(tuned: Tuned) -> None:
    assert tuned.fit.baseline.outcome.measured
    doubted = any("no gain is reported" in caveat for caveat in tuned.fit.caveats)  # others use this machine meanwhile
    assert doubted != (tuned.fit.gain is not None), tuned.fit.details()


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
    refused = {refusal.name for refusal in tuned.fit.answer.refused}
    caveats = "\n".join(tuned.fit.caveats)
    if name == "convnet" or name in WHOLE:
        # What changes the gradient is refused once a plan that does so is the fastest; an `update_fn` is one step.
        assert name == "convnet" or "accumulation" in refused
        assert tuned.workload.global_batch_size in (None, tuned.fit.plan.micro_batch_size)
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


def test_it_prints_the_answer_trains_and_keeps_its_study(tuned: Tuned) -> None:
    assert "Proven by 3 whole steps on the worst batch" in " ".join(tuned.printed.split())
    assert "step 1: loss " in tuned.printed
    assert (tuned.folder / ".autofit" / "study.journal").is_file()


def test_it_runs_as_a_script(tuned: Tuned) -> None:
    """What runs as a script is `main`, which `tuned` has run."""
    text = Path(str(tuned.example.__file__)).read_text()
    assert text.endswith('\n\n\nif __name__ == "__main__":\n    main()\n')


@pytest.mark.parametrize("name", WHOLE)
def test_a_step_of_the_user_refuses_what_would_change_its_inside(name: str) -> None:
    example = load(name)
    with LocalBench(example.make_workload(), devices.choose("cpu"), Options(memory_budget=example.MEMORY)) as bench:
        space = bench.briefing.space
    assert "checkpointed_blocks" in {knob.name for knob in space.knobs}
    reasons = {refusal.name: refusal.reason for refusal in space.refused}
    for refused in ("accumulation", "optimizer_in_backward", "compilation"):
        assert "update_fn does the whole optimizer step" in reasons[refused]


def test_the_teacher_follows_the_student_and_stays_in_evaluation_mode() -> None:
    example = load("ema_teacher")
    workload = example.make_workload()
    student, teacher = workload.model["student"], workload.model["teacher"]
    batch = next(iter(workload.loader))
    for _ in range(5):
        example.update(workload.model, workload.optimizer, batch)
    pairs = list(zip(student.parameters(), teacher.parameters(), strict=True))
    assert all(not torch.equal(one, other) for one, other in pairs)
    assert not teacher.training
    assert all(p.grad is None for p in teacher.parameters())
