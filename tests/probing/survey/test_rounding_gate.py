"""A strategy may round in another way. One that changes more than that, or that is objected to, does not pass."""

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.survey.gradients import Build, State
from autofit.probing.survey.rounding_gate import rounding
from autofit.strategies.packing import Packing
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.fakes.decoders import Classifier

TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 9, 0, 0, 0], [3, 0, 0, 0, 0]])
BATCH = Counted((TOKENS, torch.tensor([0, 1, 2, 3])), 4)
ON = Plan(values={"packing": True})


def builder(model: nn.Module) -> Build:
    rule = LossRule("step_fn", lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), False, "")

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cpu")), [Packing()])

    return build


def test_the_gradient_may_differ_by_rounding_alone() -> None:
    kept = rounding(builder(Classifier(11)), ON, BATCH, 0)
    assert kept.passed
    assert kept.reason.startswith("relative L2 of the gradient")
    changed = rounding(builder(Classifier(11, leaks=True)), ON, BATCH, 0)
    assert (changed.passed, changed.checked) == (False, True)
    assert changed.reason.startswith("packing=True changes the gradient of this model: relative L2")


def test_an_objection_decides_and_what_it_changed_is_put_back() -> None:
    model, restored = Classifier(11), list[str]()
    state = State(restore=lambda: restored.append("state"))
    found = rounding(builder(model), ON, BATCH, 0, state, lambda: "the samples of a row are mixed")
    assert (found.passed, found.reason) == (False, "the samples of a row are mixed")
    assert restored == ["state"]
    assert model.decoder.calls == []


class Unused(Classifier):
    """Its loss does not depend on its weights."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 0


def test_a_batch_without_a_gradient_checks_nothing() -> None:
    assert not rounding(builder(Unused(11)), ON, BATCH, 0).passed


class TrainsOnly(Classifier):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("no loss in evaluation mode")
        return super().forward(ids)


def test_a_step_that_runs_in_training_mode_only_is_compared_in_it() -> None:
    found = rounding(builder(TrainsOnly(11)), ON, BATCH, 0)
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
