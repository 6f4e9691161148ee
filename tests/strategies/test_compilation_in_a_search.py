"""A search with compilation: it is tried where it can pay, wins where it does, and ends in its time."""

import os
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S
from autofit.core.space import Basis
from autofit.fit import Fit
from autofit.probing.compile_cache import VARIABLE
from tests.strategies.test_compilation import stack

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.filterwarnings("default")]


class Dispatching(nn.Module):
    """Waits in each forward pass as for Python between its operators, unless it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.1)
        output: torch.Tensor = self.line(x)
        return output


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), batch_size=8)


def tuned(model: nn.Module, **more: Any) -> Fit:
    return autofit.tune(
        model, loader(), loss_fn=F.cross_entropy, strategies=["compilation"], study=":memory:", progress=False, **more
    )


@pytest.fixture
def uncompiled_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has torch.compile trace the model, and run the trace as it is."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.usefixtures("uncompiled_backend")
def test_it_wins_where_it_pays_and_can_be_prepared() -> None:
    model = Dispatching()
    fit = tuned(model, planned_steps=100_000)
    assert fit.plan.values["compile"] == "default", fit
    assert fit.gain is not None
    assert fit.gain.low > 2
    assert fit.answer.objective.planned_samples == 100_000 * 8
    assert "_compiled_call_impl" not in vars(model)
    with fit.prepare(model, loader()) as step:
        losses = [float(step(batch)) for batch in step.loader]
    assert len(losses) == 8
    assert "_compiled_call_impl" not in vars(model)


@pytest.mark.usefixtures("uncompiled_backend")
def test_a_training_too_short_for_it_does_not_try_it_and_says_so() -> None:
    fit = tuned(Dispatching(), planned_steps=20)
    assert fit.answer.counts["measured"] == 2  # the baseline, and its proof
    assert fit.result is not None
    omissions = fit.result.evidence.omissions
    assert len(omissions) == 1
    for omission in omissions:
        assert omission.basis is Basis.ASSUMED
        assert "compile=default cannot pay: even 2 times as fast" in omission.reason


@pytest.mark.slow
def test_a_search_that_really_compiles_ends_in_its_time_and_leaves_no_trace() -> None:
    before, began = os.environ.get(VARIABLE), time.monotonic()
    model = stack(4)
    fit = tuned(model, time_budget="45s", planned_steps=10**9)
    assert time.monotonic() - began < (1 + OVERTIME_RATIO) * 45 + OVERTIME_S
    assert sum(fit.answer.counts.values()) > 2
    assert fit.proof.worst_steps == 3
    assert os.environ.get(VARIABLE) == before
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())


def test_an_estimate_claims_no_figure_for_compiled_plans() -> None:
    estimation = autofit.estimate(stack(4), loader(), loss_fn=F.cross_entropy, strategies=["compilation", "batching"])
    rows = {row.value: row for row in estimation.rows}
    assert rows["off"].largest is not None
    for value in ("default", "blocks"):
        assert rows[value].largest is None
        assert "torch.compile decides which tensors are kept in memory" in rows[value].reason
