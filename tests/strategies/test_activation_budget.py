"""The budget for activations: compiled code keeps less and has the same gradient, or refuses to draw random numbers."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch.nn.functional as F
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.outcome import Status
from autofit.core.plan import KnobValue, Plan
from autofit.failures.classify import classify
from autofit.failures.evidence import collect
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.compilation import (
    BLOCKS,
    BUDGET,
    GRAPHS,
    MODEL,
    OFF,
    SHARES,
    TUNED,
    WHOLE,
    Compilation,
    WithinBudget,
    budget_refusal,
)
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft

RULE = LossRule("step_fn", lambda model, batch: model(batch[0]).square().sum(), False, "")
ROWS, WIDTH = 64, 32

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.filterwarnings("default")]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(self.linear(x)), self.dropout, self.training)


def stack(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dropout) for _ in range(6)))


def batch() -> tuple[torch.Tensor]:
    return (torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)),)


def facts(model: nn.Module, **changes: Any) -> Facts:
    known: dict[str, Any] = {
        "model": model,
        "batch": batch(),
        "optimizer": None,
        "device_type": "cpu",
        "capabilities": frozenset({"compiled code"}),
        "numerics": "exact",
        "training": True,
        "micro_batch_size": ROWS,
    }
    return Facts(**known | changes)


def plan(budget: KnobValue, compiled: str = MODEL) -> Plan:
    return Plan(values={"compile": compiled, BUDGET: budget})


def kept_bytes(of: Plan, model: nn.Module) -> int:
    """Trains one step, which subtracts the gradient; returns the bytes that its forward pass keeps beside weights."""
    draft = Draft(model, RULE, torch.optim.SGD(model.parameters(), lr=1.0), torch.device("cpu"))
    storages = {tensor.untyped_storage().data_ptr(): 0 for tensor in (*model.parameters(), *batch())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    kept: list[torch.Tensor] = []  # so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return keep(tensor)

    with prepare(of, draft, members()) as step, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(batch())
        assert functorch.activation_memory_budget == 1
    return sum(storages.values())


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def graphs() -> int:
    found: int = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    return found


def test_less_is_kept_and_the_gradient_is_the_same() -> None:
    models = {value: stack() for value in SHARES}
    kept = {value: kept_bytes(plan(value), model) for value, model in models.items()}
    plain = stack()
    plain(*batch()).square().sum().backward()
    before, expected = weights(plain), gradient(plain)
    for model in models.values():
        torch.testing.assert_close(before - weights(model), expected, rtol=1e-4, atol=1e-5)
    assert kept["half"] <= 0.7 * kept[WHOLE]
    assert kept["fifth"] <= 0.4 * kept[WHOLE]


def test_a_plan_that_is_applied_again_finds_its_code_and_another_budget_does_not() -> None:
    model = stack()
    kept_bytes(plan("half"), model)
    before = graphs()
    kept_bytes(plan("half"), model)
    assert graphs() == before
    kept_bytes(plan("fifth"), model)
    assert graphs() == before + 1
    assert WithinBudget(0.5) == WithinBudget(0.5) != WithinBudget(0.2)


def test_blocks_have_a_budget_too() -> None:
    whole, half = (kept_bytes(plan(value, BLOCKS), stack()) for value in (WHOLE, "fifth"))
    assert half < whole


def test_torch_itself_draws_other_random_numbers_when_it_recomputes_them() -> None:
    """The reason for refusing such steps: once this fails with a supported torch, they need no refusal any more."""
    gradients = []
    for budget in (1.0, 0.0):
        model = stack(dropout=0.5)
        call: Any = torch.compile(model, dynamic=False)
        torch.manual_seed(3)
        with functorch.patch(activation_memory_budget=budget):
            call(*batch()).square().sum().backward()
        gradients.append(gradient(model))
        torch._dynamo.reset()
    assert (gradients[0] - gradients[1]).norm() > 0.1 * gradients[0].norm()


def test_a_graph_that_draws_random_numbers_is_not_compiled_within_a_budget() -> None:
    """Also if the model was changed since its plan was found."""
    with pytest.raises(Exception, match="the step draws random numbers") as caught:
        kept_bytes(plan("half"), stack(dropout=0.5))
    assert classify(collect(caught.value)).status is Status.NOT_COMPILED
    assert functorch.activation_memory_budget == 1


def test_what_draws_nothing_has_the_knob() -> None:
    (_, knob) = Compilation().offer(facts(stack())).knobs
    assert (knob.name, knob.values, knob.default) == (BUDGET, tuple(SHARES), WHOLE)
    assert knob.expected[2] < knob.expected[1] < knob.expected[0] == 1
    assert knob.growth[2] < knob.growth[1] < knob.growth[0] == 1


class Dropping(nn.Module):
    """Drops by a rate of its own, as the attention of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = 0.1
        self.linear = nn.Linear(4, 4)


def test_a_dropout_that_drops_nothing_or_is_switched_off_draws_nothing() -> None:
    assert budget_refusal(facts(stack(dropout=0.0))) == ""
    assert budget_refusal(facts(stack(dropout=0.1).eval())) == ""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: facts(stack(), training=False), "inference has no backward pass"),
        (lambda: facts(stack(dropout=0.1)), "the step draws random numbers (Block 0)"),
        (lambda: facts(Dropping()), "the step draws random numbers (Dropping)"),
    ],
)
def test_others_keep_the_reason(make: Callable[[], Facts], reason: str) -> None:
    offer = Compilation().offer(make())
    assert [knob.name for knob in offer.knobs] == ["compile"]
    (refused,) = (each for each in offer.refused if each.name == BUDGET)
    assert reason in refused.reason


def test_what_the_user_has_set_is_kept() -> None:
    with functorch.patch(activation_memory_budget=0.3):
        assert "activation_memory_budget is 0.3, which the user has chosen" in budget_refusal(facts(stack()))
    inductor: Any = sys.modules["torch._inductor.config"]
    with inductor.patch(joint_custom_pre_pass=copy.copy):
        assert "the user has set torch._inductor.config.joint_custom_pre_pass" in budget_refusal(facts(stack()))
        with pytest.raises(Exception, match=r"joint_custom_pre_pass.*Set it back to None, or tune again"):
            kept_bytes(plan("half"), stack())


@pytest.mark.parametrize("value", [0.5, 1, True, "third", 0])
def test_unknown_budgets_are_rejected(value: KnobValue) -> None:
    draft = Draft(stack(), RULE, None, torch.device("cpu"))
    wanted = Plan.model_construct(values={BUDGET: value})
    with (
        pytest.raises(SpaceError, match=r"activation_budget=.*expected one of default, half, fifth"),
        Compilation().apply(wanted, draft),
    ):
        pass


def test_it_goes_with_one_choice_of_what_is_recomputed() -> None:
    conflict = Compilation().conflict
    assert conflict(plan(WHOLE, OFF)) is None
    assert conflict(plan("half", MODEL)) is None
    assert conflict(plan("half", BLOCKS).replace(checkpointed_blocks=0)) is None
    for compiled in (OFF, TUNED, GRAPHS):
        assert conflict(plan("half", compiled)) == "activation_budget=half needs compile=default or blocks"
    assert "both choose what is recomputed" in (conflict(plan("half").replace(checkpointed_blocks=2)) or "")


@pytest.mark.parametrize("compiled", [TUNED, GRAPHS])
def test_modes_of_the_compiler_have_no_budget(compiled: str) -> None:
    draft = Draft(stack(), RULE, None, torch.device("cpu"))
    with (
        pytest.raises(SpaceError, match="activation_budget='half'"),
        Compilation().apply(plan("half", compiled), draft),
    ):
        pass
