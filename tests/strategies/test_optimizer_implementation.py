"""Optimizer implementations: what is offered, that the chosen one runs, and that all of it is put back."""

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.base import Facts, Offer
from autofit.strategies.optimizer_implementation import OptimizerImplementation
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft
from autofit.workloads.workload import OptimizerSet

RULE = LossRule("step_fn", lambda model, batch: model(batch).square().mean(), False, "")
MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "adam": lambda parameters: Adam(parameters, lr=0.01, amsgrad=True),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01),
    "sgd": lambda parameters: SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda parameters: Adagrad(parameters, lr=0.01, lr_decay=0.1),
    "rmsprop": lambda parameters: RMSprop(parameters, lr=0.01, momentum=0.9),
}
# AdamW runs Adam's functions.
MODULES = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "adagrad": "adagrad", "rmsprop": "rmsprop"}
PREFIXES = {"for-loop": "_single_tensor_", "foreach": "_multi_tensor_", "fused": "_fused_"}
CASES = [(kind, way) for kind in MAKERS for way in PREFIXES if (kind, way) != ("rmsprop", "fused")]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def plan(value: str) -> Plan:
    return Plan(values={"optimizer_implementation": value})


def draft(model: nn.Module, optimizer: Optimizer | None) -> Draft:
    return Draft(model, RULE, optimizer, torch.device("cpu"))


def facts(optimizer: Optimizer | None, model: nn.Module | None = None) -> Facts:
    return Facts(
        model=model or net(),
        batch=batch(),
        optimizer=optimizer,
        device_type="cpu",
        capabilities=frozenset({"foreach", "fused"}),
        numerics="exact",
        training=optimizer is not None,
        micro_batch_size=6,
    )


def offer(optimizer: Optimizer | None, model: nn.Module | None = None) -> Offer:
    return OptimizerImplementation().offer(facts(optimizer, model))


def values(optimizer: Optimizer) -> tuple[object, ...]:
    return offer(optimizer).knobs[0].values


def only_reason(optimizer: Optimizer | None) -> str:
    found = offer(optimizer)
    assert found.knobs == ()
    assert [refusal.name for refusal in found.refused] == ["optimizer_implementation"]
    return found.refused[0].reason


def looks(optimizer: Optimizer) -> dict[str, Any]:
    """Returns all of an optimizer but the values of its state: what leaving must put back."""
    return {
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "defaults": dict(optimizer.defaults),
        "attributes": sorted(vars(optimizer)),
        "state": {
            id(parameter): {key: (id(value), value.dtype, value.device) for key, value in state.items()}
            for parameter, state in optimizer.state.items()
        },
        "group objects": [id(group) for group in optimizer.param_groups],
    }


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records torch's implementations as they are called."""
    calls: list[str] = []

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, recorded)

    for kind in sorted(set(MODULES.values())):
        module = importlib.import_module(f"torch.optim.{kind}")
        for prefix in PREFIXES.values():
            if hasattr(module, prefix + kind):
                watch(module, prefix + kind)
    return calls


def test_offers_what_the_optimizer_has_beside_what_it_runs() -> None:
    assert values(AdamW(net().parameters())) == ("default", "foreach", "fused")
    assert values(AdamW(net().parameters(), foreach=True)) == ("default", "for-loop", "fused")
    assert values(AdamW(net().parameters(), fused=True)) == ("default", "for-loop", "foreach")
    assert values(AdamW(net().parameters(), fused=False)) == ("default", "foreach", "fused")
    assert values(RMSprop(net().parameters())) == ("default", "foreach")
    refused = {refusal.name: refusal.reason for refusal in offer(RMSprop(net().parameters())).refused}
    assert "no fused implementation" in refused["optimizer_implementation=fused"]
    assert "default already runs" in refused["optimizer_implementation=for-loop"]


def test_shards_have_no_fused_update_where_torch_has_none() -> None:
    found = {
        kind: OptimizerImplementation().offer(replace(facts(kind(net().parameters(), lr=0.1)), ranks=ranks)).objection
        for kind, ranks in ((SGD, 2), (AdamW, 2))
    }
    assert found[AdamW] is None
    assert offer(SGD(net().parameters(), lr=0.1)).objection is None, "there is one rank"
    objection = found[SGD]
    assert objection is not None
    assert "sharded parameters, as layout=full has" in str(objection(plan("fused").replace(layout="full")))
    for other in (plan("fused").replace(layout="replicated"), plan("foreach").replace(layout="full")):
        assert objection(other) is None


def test_offer_leaves_the_optimizer_and_the_random_state_as_they_are() -> None:
    model = net()
    optimizer = Adagrad(model.parameters())
    hooked: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda *args: hooked.append(args))
    before, random = looks(optimizer), torch.get_rng_state()
    offer(optimizer, model)
    handle.remove()
    assert looks(optimizer) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert hooked == []


def test_device_without_kernels_is_refused() -> None:
    found = OptimizerImplementation().offer(replace(facts(AdamW(net().parameters())), capabilities=frozenset()))
    assert found.knobs == ()
    assert {refusal.name for refusal in found.refused} == {
        f"optimizer_implementation={value}" for value in ("for-loop", "foreach", "fused")
    }


class OwnStep(AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OwnOptions(AdamW):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.01)


def test_optimizers_that_cannot_be_switched_are_refused() -> None:
    assert "inference" in only_reason(None)
    assert "its own step" in only_reason(OwnStep(net().parameters()))
    assert "one implementation" in only_reason(torch.optim.LBFGS(net().parameters()))
    assert "differentiable" in only_reason(AdamW(net().parameters(), differentiable=True))
    first, second = net().parameters(), net().parameters()
    groups: list[dict[str, Any]] = [{"params": first, "foreach": True}, {"params": second}]
    assert "differ in foreach" in only_reason(AdamW(groups))


def test_subclass_with_a_constructor_of_its_own_is_offered() -> None:
    assert values(OwnOptions(net())) == ("default", "foreach", "fused")


def test_scheduled_optimizer_is_offered() -> None:
    optimizer = AdamW(net().parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces optimizer.step
    assert values(optimizer) == ("default", "foreach", "fused")


def test_what_torch_cannot_run_is_refused() -> None:
    found = offer(AdamW(net().parameters(), lr=torch.tensor(0.01)))
    assert found.knobs[0].values == ("default", "fused")
    assert any("lr as a Tensor is not supported" in refusal.reason for refusal in found.refused)
    complex_model = nn.Linear(2, 2, dtype=torch.complex64)
    assert "fused" not in offer(AdamW(complex_model.parameters()), complex_model).knobs[0].values


def test_sparse_gradients_are_not_fused() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    found = offer(SGD(model.parameters(), lr=0.1), model)
    assert found.knobs[0].values == ("default", "foreach")
    assert any("sparse" in refusal.reason for refusal in found.refused)


def test_state_of_another_layout_is_not_fused() -> None:
    model = nn.Linear(3, 3)
    optimizer = AdamW(model.parameters())
    prepare(Plan(), draft(model, optimizer), [])(torch.randn(2, 3))
    state = optimizer.state[model.weight]
    state["exp_avg"] = state["exp_avg"].t().contiguous().t()
    assert offer(optimizer, model).knobs[0].values == ("default", "foreach")
    with (
        pytest.raises(SpaceError, match="equal strides"),
        OptimizerImplementation().apply(plan("fused"), draft(model, optimizer)),
    ):
        pass


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_chosen_implementation_runs_and_takes_the_same_steps(kind: str, way: str, ran: list[str]) -> None:
    models = (net(), net())
    plain, switched = (MAKERS[kind](model.parameters()) for model in models)
    for model, optimizer in zip(models, (plain, switched), strict=True):
        prepare(Plan(), draft(model, optimizer), [])(batch())
    ran.clear()
    with prepare(plan(way), draft(models[1], switched), [OptimizerImplementation()]) as step:
        step(batch())
        assert ran == [PREFIXES[way] + MODULES[kind]]
        step(batch())
    for _ in range(2):
        prepare(Plan(), draft(models[0], plain), [])(batch())
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        for name, value in plain.state[one].items():
            torch.testing.assert_close(value, switched.state[other][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("warm", [True, False], ids=["with state", "without"])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_leaving_puts_back_all_but_the_values(kind: str, way: str, warm: bool) -> None:
    model = net()
    optimizer = MAKERS[kind](model.parameters())
    if warm:
        prepare(Plan(), draft(model, optimizer), [])(batch())
    before = looks(optimizer)
    with prepare(plan(way), draft(model, optimizer), [OptimizerImplementation()]) as step:
        step(batch())
    after = looks(optimizer)
    if warm:
        assert after == before
    assert {key: after[key] for key in ("groups", "defaults", "attributes", "group objects")} == {
        key: before[key] for key in ("groups", "defaults", "attributes", "group objects")
    }
    copy.deepcopy(optimizer)
    prepare(Plan(), draft(model, optimizer), [])(batch())


def test_fused_optimizer_of_the_user_is_put_back_as_fused(ran: list[str]) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01, fused=True)
    prepare(Plan(), draft(model, optimizer), [])(batch())
    before = {**looks(optimizer), "marks": optimizer._need_device_dtype_check_for_fused}
    with prepare(plan("foreach"), draft(model, optimizer), [OptimizerImplementation()]) as step:
        assert not optimizer._step_supports_amp_scaling
        step(batch())
    assert {**looks(optimizer), "marks": optimizer._need_device_dtype_check_for_fused} == before
    assert ran == ["_fused_sgd", "_multi_tensor_sgd"]
    assert optimizer._step_supports_amp_scaling


@pytest.fixture
def wide() -> Iterator[None]:
    """Makes float64 the default, so that a loop's step counters differ from those of a fused kernel without a GPU."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def counters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [state["step"] for state in optimizer.state.values()]


def test_counters_become_those_of_the_implementation_and_come_back_as_the_same_tensors(wide: None) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    prepare(Plan(), draft(model, optimizer), [])(batch())
    own = counters(optimizer)
    assert {counter.dtype for counter in own} == {torch.float64}
    with prepare(plan("fused"), draft(model, optimizer), [OptimizerImplementation()]) as step:
        assert {counter.dtype for counter in counters(optimizer)} == {torch.float32}
        step(batch())
    assert all(now is before for now, before in zip(counters(optimizer), own, strict=True))
    assert [counter.item() for counter in own] == [2.0] * 4


def test_counters_that_training_created_become_those_of_the_user(wide: None) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    with prepare(plan("fused"), draft(model, optimizer), [OptimizerImplementation()]) as step:
        step(batch())
        assert {counter.dtype for counter in counters(optimizer)} == {torch.float32}
    assert {counter.dtype for counter in counters(optimizer)} == {torch.float64}
    assert [counter.item() for counter in counters(optimizer)] == [1.0] * 4


@pytest.mark.parametrize("way", PREFIXES)
@pytest.mark.parametrize("own", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_gradient_scaler_goes_with_every_implementation(way: str, own: dict[str, Any]) -> None:
    plain, scaled = net(), net()
    prepare(Plan(), draft(plain, AdamW(plain.parameters(), lr=0.01)), [])(batch())
    made = draft(scaled, AdamW(scaled.parameters(), lr=0.01, **own))
    made.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with prepare(plan(way), made, [OptimizerImplementation()]) as step:
        step(batch())
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_group_that_is_added_meanwhile_gets_the_flags_and_loses_them() -> None:
    model, late = net(), nn.Parameter(torch.ones(2))
    optimizer = AdamW(model.parameters())
    with OptimizerImplementation().apply(plan("fused"), draft(model, optimizer)):
        optimizer.add_param_group({"params": [late]})
        assert optimizer.param_groups[1]["fused"] is True
    assert [(group["foreach"], group["fused"]) for group in optimizer.param_groups] == [(None, None)] * 2


def test_an_error_inside_undoes_too() -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    prepare(Plan(), draft(model, optimizer), [])(batch())
    before = looks(optimizer)
    with pytest.raises(KeyError), OptimizerImplementation().apply(plan("fused"), draft(model, optimizer)):
        raise KeyError
    assert looks(optimizer) == before


@pytest.mark.parametrize("value", ["quick", 1, True])
def test_unknown_value_is_turned_away(value: str | int) -> None:
    asked = Plan(values={"optimizer_implementation": value})
    made = draft(net(), AdamW(net().parameters()))
    with (
        pytest.raises(SpaceError, match="optimizer_implementation="),
        OptimizerImplementation().apply(asked, made),
    ):
        pass


def test_what_the_optimizer_does_not_have_is_turned_away() -> None:
    for optimizer, why in (
        (RMSprop(net().parameters()), "no fused implementation"),
        (OwnStep(net().parameters()), "its own step"),
        (None, "inference"),
    ):
        made = draft(net(), optimizer)
        with pytest.raises(SpaceError, match=why), OptimizerImplementation().apply(plan("fused"), made):
            pass


def test_each_of_several_optimizers_is_switched() -> None:
    model = net()
    each = {"one": AdamW(model[0].parameters()), "other": SGD(model[2].parameters(), momentum=0.9)}  # type: ignore[index]
    offer = OptimizerImplementation().offered(replace(facts(OptimizerSet(each), model), update_fn=True))
    assert offer.knobs[0].values == ("default", "foreach", "fused")
    step = draft(model, OptimizerSet(each))
    with OptimizerImplementation().apply(plan("fused"), step):
        assert all(one.param_groups[0]["fused"] for one in each.values())
    assert not any(one.param_groups[0]["fused"] for one in each.values())


def test_what_one_of_several_optimizers_lacks_is_not_offered() -> None:
    model = net()
    each = {"one": AdamW(model[0].parameters()), "other": RMSprop(model[2].parameters())}  # type: ignore[index]
    offer = OptimizerImplementation().offered(facts(OptimizerSet(each), model))
    assert "fused" not in offer.knobs[0].values
    assert "RMSprop has no fused implementation" in [refusal.reason for refusal in offer.refused]
    with (
        pytest.raises(SpaceError, match="RMSprop has no fused implementation"),
        OptimizerImplementation().apply(plan("fused"), draft(model, OptimizerSet(each))),
    ):
        pass
    assert not each["one"].param_groups[0]["fused"]


def test_an_optimizer_with_one_implementation_refuses_the_others_for_all() -> None:
    model = net()
    each = {"one": AdamW(model[0].parameters()), "other": torch.optim.LBFGS(model[2].parameters())}  # type: ignore[index]
    (refusal,) = OptimizerImplementation().offered(facts(OptimizerSet(each), model)).refused
    assert refusal.reason == "LBFGS has only one implementation"
