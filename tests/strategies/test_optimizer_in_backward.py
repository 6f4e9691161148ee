"""Optimizer in backward: the same weights and state bit for bit, less memory, and refusals where it would differ."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError, UsageError
from autofit.core.plan import Plan
from autofit.devices.cpu import Cpu
from autofit.prepare import prepare
from autofit.strategies.base import Facts
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.optimizer_in_backward import OptimizerInBackward
from autofit.strategies.precision import Precision
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch
from tests.strategies.repeated_blocks import LOSS, Gpt

STRATEGY = OptimizerInBackward()
ON = Plan(values={"optimizer_in_backward": True})
RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, maximize=True),
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "tensor lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.01)),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adadelta": lambda params: torch.optim.Adadelta(params, lr=0.1),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "adamax": lambda params: torch.optim.Adamax(params, lr=0.01),
    "asgd": lambda params: torch.optim.ASGD(params, lr=0.1),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "radam": lambda params: torch.optim.RAdam(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
}


class Tied(nn.Module):
    """A small language model: its embedding is also its head, one layer is used twice, and one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.shared = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(torch.tanh(self.shared(torch.tanh(self.shared(self.embedding(tokens))))))
        output: torch.Tensor = (hidden @ self.embedding.weight.T).mean(dim=1)
        return output


def draft(make: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["adamw"], model: nn.Module | None = None) -> Draft:
    torch.manual_seed(0)
    made = model or Tied()
    matrices, vectors = ([p for p in made.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
    groups = [{"params": matrices}, {"params": vectors, "lr": 0.02}]
    return Draft(made, RULE, make(groups), torch.device("cpu"))


def batches(count: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, 13, (4, 5), generator=generator), torch.randint(0, 13, (4,), generator=generator))
        for _ in range(count)
    ]


def facts(made: Draft, **changes: Any) -> Facts:
    known = Facts(
        model=made.model,
        batch=batches(1)[0],
        optimizer=made.optimizer,
        device_type="cpu",
        capabilities=frozenset(),
        numerics="exact",
        training=True,
        micro_batch_size=4,
    )
    return replace(known, **changes)


def reason(made: Draft, **changes: Any) -> str:
    offer = STRATEGY.offer(facts(made, **changes))
    assert offer.knobs == ()
    assert [refusal.name for refusal in offer.refused] == ["optimizer_in_backward"]
    return offer.refused[0].reason


def by_hand(made: Draft, steps: list[Any], scheduler: Any = None) -> None:
    assert made.optimizer is not None
    for inputs, targets in steps:
        made.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(made.model(inputs), targets))
        made.optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_same_bits(one: Draft, other: Draft) -> None:
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert one.optimizer is not None
    assert other.optimizer is not None
    mine, theirs = one.optimizer.state_dict(), other.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for number, state in mine["state"].items():
        assert state.keys() == theirs["state"][number].keys()
        for name, value in state.items():
            other_value = theirs["state"][number][name]
            same = torch.equal(value, other_value) if isinstance(value, torch.Tensor) else value == other_value
            assert same, (number, name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_state_are_those_of_the_usual_step_bit_for_bit(name: str) -> None:
    one, other = draft(OPTIMIZERS[name]), draft(OPTIMIZERS[name])
    with prepare(ON, one, [STRATEGY]) as step:
        for batch in batches():
            step(batch)
    by_hand(other, batches())
    assert_same_bits(one, other)


def test_learning_rate_schedule_is_followed_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    one, other = draft(), draft()
    assert one.optimizer is not None
    assert other.optimizer is not None
    one.scheduler = torch.optim.lr_scheduler.StepLR(one.optimizer, step_size=1, gamma=0.5)
    with prepare(ON, one, [STRATEGY]) as step:
        for batch in batches():
            step(batch)
    by_hand(other, batches(), torch.optim.lr_scheduler.StepLR(other.optimizer, step_size=1, gamma=0.5))
    assert_same_bits(one, other)
    assert one.optimizer.param_groups[0]["lr"] == 0.01 / 8
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_gradients_never_exist_all_at_once() -> None:
    made = draft(model=nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 13)))
    alive: list[int] = []

    def count(module: nn.Module, inputs: Any, outputs: Any) -> None:
        alive.append(sum(parameter.grad is not None for parameter in made.model.parameters()))

    for layer in made.model.children():
        layer.register_full_backward_hook(count)
    batch = (torch.randn(4, 8, requires_grad=True), torch.randint(0, 13, (4,)))
    with prepare(ON, made, [STRATEGY]) as step:
        step(batch)
    assert max(alive) <= 2
    assert all(parameter.grad is None for parameter in made.model.parameters())
    alive.clear()
    prepare(Plan(), made, [STRATEGY])(batch)
    assert max(alive) >= 12


@pytest.mark.parametrize("value", [False, True])
def test_memory_of_a_step_falls_by_the_gradients(value: bool) -> None:
    """With small activations, the plain step peaks in the update: weights, two momenta and all gradients."""
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)), nn.Linear(512, 13))
    made = draft(model=model)
    batch = (torch.randn(4, 512), torch.randint(0, 13, (4,)))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with prepare(Plan(values={"optimizer_in_backward": value}), made, [STRATEGY]) as step:
        step(batch)  # makes the momenta
        with Cpu().meter(lambda: 3 * weights) as reading:
            step(batch)
    assert reading.memory is not None
    extra = reading.memory.allocated_bytes - 3 * weights
    assert (extra < weights / 2) if value else (extra > weights)


def test_state_dict_loaded_in_the_middle_is_used() -> None:
    one, other = draft(), draft()
    by_hand(other, batches(1))
    assert one.optimizer is not None
    assert other.optimizer is not None
    with prepare(ON, one, [STRATEGY]) as step:
        step(batches(1)[0])
        one.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        step(batches(2)[1])
    by_hand(other, batches(2)[1:])
    assert_same_bits(one, other)


def test_parameters_that_join_later_are_updated_too() -> None:
    one, other = draft(), draft()
    for made in (one, other):
        made.model.frozen.requires_grad_(True)
    one.model.frozen.requires_grad_(False)
    with prepare(ON, one, [STRATEGY]) as step:
        one.model.frozen.requires_grad_(True)
        for batch in batches():
            step(batch)
    by_hand(other, batches())
    assert_same_bits(one, other)


def test_checkpointed_blocks_train_alike() -> None:
    plan = Plan(values={"optimizer_in_backward": True, "checkpointed_blocks": 2})
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 16, (2, 4), generator=generator) for _ in range(3)]
    found = []
    for each in (Plan(), plan):
        torch.manual_seed(0)
        model = Gpt(4)
        made = Draft(model, LOSS, torch.optim.AdamW(model.parameters(), lr=0.01), torch.device("cpu"))
        with prepare(each, made, [STRATEGY, Checkpointing()]) as step:
            for batch in tokens:
                step(batch)
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    plain, ours = found
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_autograd_reports_a_weight_that_is_still_needed() -> None:
    """The first layer's backward needs the old weight of the second, whose own gradient was complete before."""

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 13)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            frozen = F.linear(torch.tanh(self.one(inputs)), self.two.weight.detach())
            return F.linear(torch.tanh(frozen @ self.two.weight.detach()), self.two.weight)

    made = draft(model=Reused())
    with prepare(ON, made, [STRATEGY]) as step, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step((torch.randn(4, 8), torch.randint(0, 13, (4,))))


def test_nothing_stays() -> None:
    made = draft()
    parameter: Any = made.model.get_parameter("shared.weight")
    hooks: Any = parameter._post_accumulate_grad_hooks
    assert hooks is None
    for _ in range(2):
        with prepare(ON, made, [STRATEGY]) as step:
            assert made.one_pass
            assert len(parameter._post_accumulate_grad_hooks) == 1
            step(batches(1)[0])
        assert parameter._post_accumulate_grad_hooks is None
        assert not made.one_pass
    by_hand(made, batches(1))
    assert parameter.grad is not None  # `by_hand` leaves the gradients of its last step


def test_gradients_alone_are_those_of_the_usual_backward_pass() -> None:
    """Gates ask for them, and users may call `loss.backward()` between two steps."""
    one, other = draft(), draft()
    before = copy.deepcopy(one.model.state_dict())
    with prepare(ON, one, [STRATEGY]) as step:
        step.backward(StepBatch.alike(batches(2)))
    prepare(Plan(), other, []).backward(StepBatch.alike(batches(2)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.model.state_dict().items())
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert (mine.grad is None) is (theirs.grad is None)
        assert mine.grad is None or theirs.grad is None or torch.equal(mine.grad, theirs.grad)


def test_a_step_that_fails_is_over() -> None:
    made = draft()
    with prepare(ON, made, [STRATEGY]) as step:
        with pytest.raises(IndexError):
            step((torch.full((4, 5), 13), torch.zeros(4, dtype=torch.long)))
        assert not made.stepping


def test_step_of_several_micro_batches_is_refused() -> None:
    made = draft()
    with prepare(ON, made, [STRATEGY]) as step, pytest.raises(UsageError, match="2 micro batches"):
        step(StepBatch.alike(batches(2)))
    assert all(parameter.grad is None for parameter in made.model.parameters())


def test_offers_the_knob() -> None:
    (knob,) = STRATEGY.offer(facts(draft())).knobs
    assert (knob.values, knob.default, knob.one_pass) == ((False, True), False, (True,))


def test_gradients_that_are_small_beside_the_budget_are_refused_with_the_number() -> None:
    assert "less than 5% of the memory budget of 1 GiB" in reason(draft(), memory_budget_bytes=2**30)
    assert STRATEGY.offer(facts(draft(), memory_budget_bytes=10_000)).knobs


def test_the_largest_gradient_does_not_count() -> None:
    """It exists in any case: the embedding of a small classifier is most of it."""
    made = draft(model=nn.Sequential(nn.Embedding(10_000, 8), nn.Linear(8, 8)))
    assert "without the largest one are 288 B," in reason(made, memory_budget_bytes=200_000)


def hooked(made: Draft, register: str) -> Draft:
    getattr(made.optimizer, register)(lambda optimizer, args, kwargs: None)
    return made


class OwnStep(torch.optim.SGD):
    """An optimizer of the user's, which looks at all gradients."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def with_replaced_step() -> Draft:
    made = draft()
    vars(made.optimizer)["step"] = lambda: None
    return made


def with_parameter_hook() -> Draft:
    made = draft()
    made.model.get_parameter("shared.weight").register_post_accumulate_grad_hook(lambda parameter: None)  # type: ignore[no-untyped-call]
    return made


def in_parallel() -> Draft:
    class Replica(nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.module = Tied()

    return draft(model=Replica())


REFUSED: dict[str, tuple[Callable[[], Draft], str]] = {
    "own step": (lambda: draft(lambda params: OwnStep(params, lr=0.1)), "OwnStep has its own step"),
    "lbfgs": (lambda: Draft((m := Tied()), RULE, torch.optim.LBFGS(m.parameters()), torch.device("cpu")), "LBFGS"),
    "sparse adam": (lambda: draft(torch.optim.SparseAdam), "SparseAdam"),
    "differentiable": (lambda: draft(lambda params: torch.optim.SGD(params, differentiable=True)), "differentiable"),
    "pre hook": (lambda: hooked(draft(), "register_step_pre_hook"), "step hooks"),
    "post hook": (lambda: hooked(draft(), "register_step_post_hook"), "step hooks"),
    "replaced step": (with_replaced_step, "was replaced"),
    "parameter hook": (with_parameter_hook, "already has a hook"),
    "data parallel": (in_parallel, "DistributedDataParallel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_differ_is_refused_by_offer_and_by_apply(name: str) -> None:
    make, text = REFUSED[name]
    assert text in reason(make())
    with pytest.raises(SpaceError, match=text), STRATEGY.apply(ON, make()):
        pass


def test_global_step_hooks_are_refused() -> None:
    handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: None)
    try:
        assert "step hooks" in reason(draft())
    finally:
        handle.remove()


def test_clipping_scaling_and_accumulation_are_refused() -> None:
    assert "clipping" in reason(draft(), max_grad_norm=1.0)
    clipped, scaled = draft(), draft()
    clipped.max_grad_norm, scaled.scaler = 1.0, torch.amp.GradScaler("cpu")
    accumulated = ON.replace(accumulation_steps=2)
    for plan, made, text in ((ON, clipped, "clipping"), (ON, scaled, "scaler"), (accumulated, draft(), "2 micro")):
        with pytest.raises(SpaceError, match=text), STRATEGY.apply(plan, made):
            pass
        assert not made.one_pass


def test_fp16_conflicts() -> None:
    assert "scaler" in (STRATEGY.conflict(ON.replace(precision="fp16")) or "")
    assert STRATEGY.conflict(ON.replace(precision="bf16")) is None
    assert STRATEGY.conflict(Plan(values={"optimizer_in_backward": False, "precision": "fp16"})) is None
    with pytest.raises(SpaceError, match="scaler"):
        prepare(ON.replace(precision="fp16"), draft(), [Precision(), STRATEGY])


def test_inference_is_refused() -> None:
    made = draft()
    made.optimizer = None
    assert "inference" in reason(made, training=False)
    with pytest.raises(SpaceError, match="inference"), STRATEGY.apply(ON, made):
        pass


def test_loader_that_needs_accumulation_is_refused() -> None:
    assert "accumulates" in reason(draft(), resizable=False, global_batch_size=8, accumulation_steps=2)


def test_search_uses_it_where_only_it_fits() -> None:
    """The gradients are 16 MiB. The usual step needs 64 MiB and more at any batch size; the budget is 60 MiB."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(16)))
    data = TensorDataset(torch.randn(64, 512), torch.randn(64, 512))
    fit = autofit.tune(
        model,
        DataLoader(data, batch_size=4),
        optimizer=torch.optim.AdamW(model.parameters(), foreach=False),
        memory_budget=60 * 2**20,
        strategies=["optimizer_in_backward"],
        numerics="exact",
        study=":memory:",
        progress=False,
    )
    assert fit.plan.values["optimizer_in_backward"] is True
    assert fit.proof.memory.allocated_bytes < 60 * 2**20
