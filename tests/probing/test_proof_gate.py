"""The gate in a proof: compiled code with a wrong gradient is found before the plan is recommended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.guard import Guard
from autofit.prepare import prepare
from autofit.probing.proof_gate import ProofGate
from autofit.probing.survey.gates import STATELESS
from autofit.probing.survey.gradients import State
from autofit.probing.watchdog import Watchdog
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.update import rule_of_update
from tests.probing.survey.test_update_gate import stale
from tests.probing.test_compilation import Net, compiled_plan, compiling, plain
from tests.workloads import gans

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.filterwarnings("default")]


def wrong(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A compiler whose results are 1 % too large."""
    return lambda *args: tuple(1.01 * each for each in graph.forward(*args))


class Dropping(Net):
    """Draws random numbers in training, which compiled code need not draw alike."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.dropout(x))


class Scaling(Strategy):
    """A fake technique that multiplies the gradient."""

    owns, phase = (), Phase.MODULES

    def __init__(self, name: str, factor: float, **attributes: Any) -> None:
        self.factor = factor
        vars(self).update({"name": name, "owns": (name,), **attributes})

    def offer(self, facts: Facts) -> Offer:
        raise AssertionError("not asked")

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        loss = draft.loss
        if plan.values.get(self.name) is True:
            draft.loss = replace(loss, compute=lambda model, batch: self.factor * loss.compute(model, batch))
        yield
        draft.loss = loss


@pytest.mark.parametrize(
    ("late", "coarse", "passed"), [(1.08, True, True), (1.2, True, False), (1.08, False, False), (1.01, True, True)]
)
def test_code_for_a_coarse_technique_may_change_as_much_as_the_technique(
    late: float, coarse: bool, passed: bool
) -> None:
    strategies = [
        *members(),
        Scaling("late", late, gated_in_proof=True, effect="rounding"),
        Scaling("coarse", 1.1, gated=True, effect="changes the result"),
    ]
    model, loader = Net(), DataLoader(TensorDataset(torch.randn(8, 8), torch.randint(0, 4, (8,))), batch_size=4)
    rule = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")
    draft = Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cpu"))
    batch = {"micro_batch_size": 4, "accumulation_steps": 1}
    baseline = Plan(values={**batch, "late": False, "coarse": False})
    gate = ProofGate(
        strategies, lambda plan: prepare(plan, draft, strategies), BatchSource.of(loader), STATELESS, Watchdog()
    )
    measured = Outcome(status=Status.NUMERIC, reason="measured", phase="proof")
    found = gate.judged(measured, baseline.replace(late=True, coarse=coarse), baseline)
    assert (found == measured) is passed, found.reason
    assert passed or "changes the gradient" in found.reason


@pytest.mark.parametrize("model", [Net, Dropping])
def test_code_with_the_same_gradient_is_proven(model: Callable[[], nn.Module]) -> None:
    with compiling(plain, model()) as bench:
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
    assert outcome.measured, outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.compiler_notes == ()


def test_code_with_another_gradient_is_not_proven_but_may_be_probed() -> None:
    with compiling(wrong) as bench:
        assert bench.evaluate(compiled_plan(bench), Purpose.PROBE).measured
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF).measured
    assert outcome.status is Status.NUMERIC
    assert outcome.reason.startswith("compile=default changes the gradient of this model: relative L2 of the gradient")


def test_what_cannot_be_compared_is_a_note() -> None:
    compiled = 0

    def once(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal compiled
        compiled += 1
        if compiled > 1:
            raise RuntimeError("no second time")
        return graph.forward

    with compiling(once, Dropping()) as bench:  # in evaluation mode it is compiled again
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
    assert outcome.measured
    assert outcome.measurement is not None
    (note,) = outcome.measurement.compiler_notes
    assert note.startswith("compile=default: its gradient was not compared")
    assert "no second time" in note


def gate_of(update_fn: Callable[..., Any]) -> tuple[ProofGate, Plan]:
    """Returns the gate of a step that the user's function does, and its baseline."""
    workload = gans.workload(update_fn=update_fn)
    guard = Guard.of(workload)
    rule, state = rule_of_update(update_fn), State(guard.restore, guard.differences)

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft.of(workload, rule, torch.device("cpu")), members())

    baseline = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, "checkpointed_blocks": 0})
    return ProofGate(members(), build, BatchSource.of(gans.loader()), state, Watchdog()), baseline


def test_a_users_step_is_compared_without_any_technique() -> None:
    measured = Outcome(status=Status.REJECTED, reason="measured", phase="proof")
    gate, baseline = gate_of(gans.update)
    assert gate.judged(measured, baseline, baseline) == measured
    assert gate.judged(measured, baseline.replace(checkpointed_blocks=4), baseline) == measured
    gate, baseline = gate_of(stale)
    found = gate.judged(measured, baseline.replace(checkpointed_blocks=4), baseline)
    assert found.status is Status.NUMERIC
    assert found.reason.startswith("checkpointed_blocks=4 changes the gradient of this model: relative L2 of the grad")
