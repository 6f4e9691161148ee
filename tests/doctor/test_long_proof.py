"""A plan that runs for a while: what its memory shows, and what is said of it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.doctor import long_proof
from autofit.doctor.long_proof import LEAST_SAMPLES, growth
from autofit.fit import Fit
from autofit.search.evidence import HELD
from tests.cli.processes import TARGETS, command, environment

MIB = 2**20
GIVEN: dict[str, Any] = {
    "loss_fn": nn.functional.mse_loss,
    "strategies": ["batching"],
    "memory_budget": "1GiB",
    "device": "cpu",
    "study": ":memory:",
    "progress": False,
    "prove": 2.0,
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_proof, "SAMPLE_S", 0.1)


class Keeping(nn.Module):
    """Keeps a tensor of 64 KiB in each pass from some pass on, or fails in one."""

    def __init__(self, first: float = float("inf"), last: float = float("inf")) -> None:
        super().__init__()
        self.layer, self.first, self.last = nn.Linear(16, 16), first, last
        self.calls, self.history = 0, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.last:
            raise ValueError("no more")
        if self.calls > self.first:
            self.history.append(torch.ones(MIB // 64))
        out: torch.Tensor = self.layer(x)
        return out


def tuned(model: nn.Module, **more: Any) -> Fit:
    data = TensorDataset(torch.randn(256, 16), torch.randn(256, 16))
    return autofit.tune(model, DataLoader(data, batch_size=8), **{**GIVEN, **more})


def test_a_plan_that_holds_says_so() -> None:
    fit = tuned(Keeping())
    assert fit.answer.long_proof.startswith(f"{HELD} for ")
    assert "steps on batches as they come, in 2" in fit.answer.long_proof
    assert not any("long proof" in each for each in fit.caveats)
    assert fit.answer.long_proof in str(fit).replace("\n", " ")


def test_without_a_wish_nothing_runs() -> None:
    assert tuned(Keeping(), prove=None).answer.long_proof == ""


def test_growth_is_reported_with_its_slope_and_line() -> None:
    fit = tuned(Keeping(first=0))
    assert "live memory grows by " in fit.answer.long_proof
    assert "tests/doctor/test_long_proof.py:" in fit.answer.long_proof
    assert ", held by `model.history[" in fit.answer.long_proof
    slope = float(fit.answer.long_proof.partition("grows by ")[2].partition(" KiB")[0])
    assert slope == pytest.approx(64, rel=0.05)
    assert fit.caveats[0] == f"the long proof: {fit.answer.long_proof}"


def test_a_step_that_fails_late_is_reported_and_the_model_comes_back() -> None:
    quick = Keeping()
    tuned(quick, prove=None)
    model = Keeping(last=quick.calls + 400)
    before = [each.clone() for each in model.parameters()]
    fit = tuned(model)
    assert fit.answer.long_proof.startswith("failed in step ")
    assert "no more" in fit.answer.long_proof
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_it_does_not_count_as_time_of_the_search() -> None:
    fit = tuned(Keeping(), time_budget=4.0)
    assert fit.answer.long_proof.startswith(HELD)


STEPS = list(range(1, 400, 10))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (lambda n: 100 * MIB, 0.0),
        (lambda n: 100 * MIB + n * MIB, MIB),
        (lambda n: 100 * MIB + (n < 60) * n * MIB, 0.0),  # warm-up, then nothing
        (lambda n: 100 * MIB + (n % 20 == 1) * 50 * MIB, 0.0),  # for a while
        (lambda n: 100 * MIB + n * 100, 0.0),  # a table
    ],
    ids=["steady", "grows", "warm-up", "for a while", "table"],
)
def test_growth_is_what_the_last_third_has_more_than_the_first(sizes: Callable[[int], int], expected: float) -> None:
    assert growth(STEPS, [sizes(n) for n in STEPS]) == pytest.approx(expected, rel=0.01)


def test_few_looks_show_nothing() -> None:
    few = STEPS[: LEAST_SAMPLES - 1]
    assert growth(few, [n * MIB for n in few]) == 0.0


@pytest.mark.slow
def test_the_command_runs_it_in_its_child(tmp_path: Path) -> None:
    words = ("--prove", "6s", "--memory", "1GiB", "--only", "batching", "--study", ":memory:", "--json")
    done = subprocess.run(
        command("tune", f"{TARGETS}:make_keeping", "-o", str(tmp_path / "plan.yaml"), "--device", "cpu", *words),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=200,
        check=True,
    )
    assert json.loads(done.stdout)["long_proof"].startswith(f"{HELD} for ")
    assert autofit.load(tmp_path / "plan.yaml").answer.long_proof.startswith(f"{HELD} for ")
