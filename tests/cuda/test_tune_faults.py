"""Whole searches in whose middle something goes wrong: a plan that holds, or an error that says what happened."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from autofit import Workload
from autofit.core.answer import Answer
from autofit.core.errors import DevicePoisoned, NothingFits
from autofit.core.outcome import Status
from autofit.search.request import Event
from tests.cuda.faults import FAULTS, at_forward, free_bytes
from tests.cuda.scaled import tabular
from tests.cuda.searches import GIB, MIB, check, no_trace, quick, tune, written
from tests.phantom.phantom import Phantom

ROOT = Path(__file__).parents[2]
TARGET = f"{Path(__file__).parent / 'faults.py'}:make_workload"
FEW = {"strategies": ("batching", "checkpointing")}
CARD = 4

pytestmark = [pytest.mark.phantom, pytest.mark.usefixtures("trusted_values")]


@pytest.fixture(autouse=True)
def small_and_quick(card: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    card(CARD * GIB)
    quick(monkeypatch)


def struck(fault: str, at: int, phantom: Phantom, **asked: Any) -> Answer:
    """Runs a search in whose `at`-th forward pass `fault` strikes; it must leave no trace."""
    workload = written(tabular(CARD))
    at_forward(workload.model, at, lambda: FAULTS[fault](phantom))
    with no_trace(workload):
        return tune(workload, **FEW | asked).answer


@pytest.mark.parametrize("at", [4, 30])
@pytest.mark.parametrize("fault", ["allocation", "cublas allocation", "cublas handle", "cublas execution"])
def test_a_single_failure_costs_a_trial_at_most(fault: str, at: int, phantom: Phantom) -> None:
    check(struck(fault, at, phantom))


@pytest.mark.parametrize("at", range(2, 24, 3))
def test_a_failed_allocation_from_which_torch_recovers_does_not_change_the_answer(at: int, phantom: Phantom) -> None:
    workload = written(tabular(CARD))
    with no_trace(workload):
        expected = tune(workload, **FEW).answer
    found = struck("allocation", at, phantom)
    assert found.counts.get("over budget", 0) == expected.counts.get("over budget", 0)
    assert found.plan == expected.plan


@pytest.mark.fault("F37")
def test_memory_that_another_process_takes_is_not_planned_with(phantom: Phantom) -> None:
    free = phantom.free_bytes
    found = struck("crowded", 20, phantom)
    check(found)
    assert found.proof.memory.reserved_bytes is not None
    assert found.proof.memory.reserved_bytes < free - free // 2


def test_a_card_that_another_process_fills_ends_the_search_with_words(phantom: Phantom) -> None:
    with pytest.raises(NothingFits, match=r"out of memory|over budget"):
        struck("full", 2, phantom)


@pytest.mark.fault("F37")
def test_a_card_that_is_full_for_a_while_still_gives_a_plan(phantom: Phantom) -> None:
    workload = written(tabular(CARD))
    at_forward(workload.model, 3, lambda: FAULTS["full"](phantom))  # the second one profiles the blocks
    at_forward(workload.model, 4, phantom.give_back)
    with no_trace(workload):
        found = tune(workload, **FEW).answer
    check(found)
    assert found.counts.get("out of memory", 0) >= 1


def test_less_free_memory_than_there_is_makes_a_smaller_budget(phantom: Phantom) -> None:
    phantom.misreport_free(2 * GIB)
    workload = written(tabular(1))
    with no_trace(workload):
        found = tune(workload, **FEW).answer
    check(found)
    assert found.budget.memory_bytes < 3.5 * GIB


@pytest.mark.fault("F39", "F40")
def test_more_free_memory_than_there_is_ends_in_a_plan_that_runs(phantom: Phantom) -> None:
    phantom.take(2 * GIB)
    phantom.misreport_free(4 * GIB)
    workload = written(tabular(CARD))
    with no_trace(workload):
        found = tune(workload, **FEW).answer
    check(found)
    assert found.proof.memory.reserved_bytes is not None
    assert found.proof.memory.reserved_bytes <= 2 * GIB - 500 * MIB


def test_a_slow_device_keeps_to_the_time_budget(phantom: Phantom) -> None:
    began = perf_counter()
    found = struck("slow", 1, phantom, time_budget=3)
    check(found)
    assert perf_counter() - began < 30


@pytest.mark.parametrize("stage", ["racing", "proving"])
@pytest.mark.fault("F37")
def test_where_memory_goes_after_the_search_a_plan_that_was_proven_before_is_the_answer(
    stage: str, phantom: Phantom
) -> None:
    def listen(event: Event) -> None:
        if event.kind == "stage" and event.text.startswith(stage):
            phantom.take(max(free_bytes(phantom) - 32 * MIB, 0))

    workload = written(tabular(CARD))
    with no_trace(workload):
        check(tune(workload, progress=listen, **FEW).answer)


def test_a_plan_whose_proof_fails_makes_way_for_another(phantom: Phantom) -> None:
    proofs: list[Event] = []

    def listen(event: Event) -> None:
        if event.kind == "stage" and event.text.startswith("proving") and not proofs:
            phantom.take(free_bytes(phantom) - 32 * MIB)
        if event.kind == "proof":
            phantom.give_back()
            proofs.append(event)

    workload = written(tabular(CARD))
    with no_trace(workload):
        found = tune(workload, progress=listen, **FEW).answer
    check(found)
    assert len(proofs) == 2
    assert proofs[0].trial is not None
    assert proofs[0].trial.plan != found.plan
    assert any("was the choice, but its proof failed" in caveat for caveat in found.caveats)


def test_a_device_that_is_poisoned_before_the_first_probe_is_named(phantom: Phantom) -> None:
    # cuBLAS tells it as a handle that could not be made.
    workload = tabular(CARD)
    at_forward(workload.model, 1, lambda: FAULTS["poison"](phantom))
    with pytest.raises(DevicePoisoned, match="answers every call with an error"):
        tune(workload, **FEW)
    phantom.reset()


@pytest.mark.parametrize("at", [12, 40])
def test_a_poisoned_device_ends_the_search_in_this_process(at: int, phantom: Phantom, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.touch()

    def strike() -> None:
        if armed.exists():
            FAULTS["poison"](phantom)

    def made() -> Workload:  # with the same hook each time: it is part of what a study knows the workload by
        workload = tabular(CARD)
        at_forward(workload.model, at, strike)
        return workload

    with pytest.raises(DevicePoisoned):
        tune(written(made()), study=tmp_path / "study.db", **FEW)
    armed.unlink()
    phantom.reset()
    events: list[Event] = []
    workload = written(made())
    with no_trace(workload):
        found = tune(workload, study=tmp_path / "study.db", progress=events.append, **FEW).answer
    check(found)
    assert found.counts["poisoned"] == 1
    assert any("known from earlier runs" in event.text for event in events)


# The command line, whose child meets the fault.


def command(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Runs `autofit tune` on the workload with a fault; returns exit code, document and stderr."""
    command = [sys.executable, "-m", "autofit", "tune", TARGET, "--device", "cuda", "--json", "--quiet"]
    command += ["--study", str(tmp_path / "study.db"), "-o", str(tmp_path / "plan.yaml"), "--strategies", "batching"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PHANTOM_TOTAL_MIB": str(CARD * 1024), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.fault("F21")
def test_a_child_that_aborts_costs_one_trial(tmp_path: Path) -> None:
    once = tmp_path / "struck"
    code, document, errors = command(
        tmp_path, "--arg", "fault=abort", "--arg", "at=20", "--arg", f"once={json.dumps(str(once))}"
    )
    assert code == 0, errors
    found = Answer.model_validate(document)
    assert once.exists()
    assert found.counts[Status.CRASHED.value] == 1
    check(found)


def test_faults_of_the_environment_reach_the_child(tmp_path: Path) -> None:
    faults = "fail_allocation:40,take_mib:1024,slow_us:20"
    code, document, errors = command(tmp_path, "--arg", "fault=allocation", "--arg", "at=3", PHANTOM_FAULT=faults)
    assert code == 0, errors
    found = Answer.model_validate(document)
    check(found)
    assert found.proof.memory.reserved_bytes is not None
    assert found.proof.memory.reserved_bytes < (CARD - 1) * GIB - 500 * MIB
