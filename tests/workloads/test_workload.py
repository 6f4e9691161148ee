"""A workload that cannot be trained is refused with what was found, what was expected and what to do next."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.errors import WorkloadError
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload, as_given
from tests.probing import targets
from tests.workloads import gans


def loss(*_: Any) -> torch.Tensor:
    return torch.tensor(0.0)


@pytest.mark.parametrize(
    ("changes", "found", "expected", "following"),
    [
        ({"model": [1]}, "model is a list", "expected a torch.nn.Module", "Pass the model first"),
        (
            {"loss_fn": loss, "step_fn": loss},
            "both loss_fn and step_fn",
            "expected one of them",
            "step_fn computes the loss",
        ),
        ({"mode": "predict"}, "mode is 'predict'", '"train" or "inference"', ""),
        ({"global_batch_size": 0}, "global_batch_size is 0", "integer of at least 1", "or None"),
        ({"global_batch_size": 2.0}, "global_batch_size is 2.0", "integer", ""),
        ({"global_batch_size": True}, "global_batch_size is True", "integer", ""),
        ({"max_grad_norm": 0}, "max_grad_norm is 0", "a number above 0", "or None"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm is nan", "a number above 0", ""),
    ],
)
def test_what_cannot_be_a_workload_is_refused(
    changes: dict[str, Any], found: str, expected: str, following: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        Workload(**{"model": targets.mlp(), "loader": targets.vectors(), **changes})
    assert all(part in str(error.value) for part in (found, expected, following))


def refusal(**changes: Any) -> str:
    with pytest.raises(WorkloadError) as error:
        Workload(**{"model": targets.mlp(), "loader": [], **changes}).make_optimizer()
    return str(error.value)


def test_a_frozen_model_cannot_be_trained_but_run() -> None:
    frozen = targets.mlp().requires_grad_(False)
    text = refusal(model=frozen)
    assert "no parameter with requires_grad=True" in text
    assert 'mode="inference"' in text
    assert Workload(frozen, [], mode="inference").make_optimizer() is None


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(targets.mlp().parameters())


NO_OPTIMIZERS = [
    (
        lambda: [sgd(), sgd()],
        "2 optimizers; expected one. For several, as in a GAN, pass a dict of them by name, and update_fn(",
    ),
    (lambda: {"generator": sgd(), "critic": sgd()}, "2 optimizers; expected one. For several"),
    (lambda: ([sgd(), sgd()], []), "2 optimizers; expected one. For several"),
    (lambda: [{"optimizer": sgd()}, {"optimizer": sgd()}, {"optimizer": sgd()}], "3 optimizers; expected one"),
    (lambda: {"optimizer": sgd(), "lr_scheduler": 1}, "a dict that holds one; expected a torch.optim.Optimizer"),
    (lambda: [sgd()], "a list that holds one; expected a torch.optim.Optimizer"),
    (lambda: [], "a list; expected a torch.optim.Optimizer, or a callable that makes one from parameters. Pass one"),
    (lambda: "adamw", "the text 'adamw'; expected a torch.optim.Optimizer"),
    (lambda: torch.optim.lr_scheduler.StepLR(sgd(), 1), "a StepLR; expected a torch.optim.Optimizer"),
]


@pytest.mark.parametrize(("made", "said"), NO_OPTIMIZERS)
def test_d12_an_optimizer_that_is_none_is_named_with_what_to_do(made: Any, said: str) -> None:
    assert f"optimizer is {said}" in refusal(optimizer=made())
    assert f"the optimizer callable returned {said}" in refusal(optimizer=lambda parameters: made())


def test_an_optimizer_over_other_parameters_is_refused() -> None:
    text = refusal(optimizer=torch.optim.SGD(targets.mlp().parameters()))
    assert "holds none of the model's trainable parameters" in text
    assert "after the model was moved" in text


def test_a_callable_that_returns_nothing_is_refused() -> None:
    text = refusal(optimizer=lambda parameters: None)
    assert "returned None; expected a torch.optim.Optimizer" in text
    assert "lambda params: torch.optim.SGD(params, lr=0.1)" in text


def test_an_instance_is_used_as_it_is() -> None:
    model = targets.mlp()
    optimizer = torch.optim.SGD(model[0].parameters())  # some of the parameters are enough
    assert Workload(model, [], optimizer=optimizer).make_optimizer() is optimizer


def test_a_recipe_makes_a_fresh_optimizer_over_what_is_trainable() -> None:
    model = targets.mlp()
    model[0].weight.requires_grad_(False)
    workload = Workload(model, [], optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    first, second = workload.make_optimizer(), workload.make_optimizer()
    assert isinstance(first, torch.optim.SGD)
    assert first is not second
    held = [p for group in first.param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in model.parameters() if p.requires_grad]


def test_the_default_optimizer_is_adamw_with_its_defaults() -> None:
    optimizer = Workload(nn.Linear(2, 2), []).make_optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.defaults == torch.optim.AdamW([torch.zeros(1)]).defaults


def test_a_model_of_lazy_modules_that_have_seen_no_batch_is_refused() -> None:
    """It failed in a strategy, and the message blamed the user's code."""
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(WorkloadError, match=r"0\.weight has no shape yet \(4 parameters .* Run one batch through it"):
        Workload(model, [])
    model(torch.ones(2, 8))
    assert Workload(model, []).model is model


class Frozen(nn.Sequential):
    """Keeps its last part in evaluation mode, as models with frozen layers do."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self[-1].eval()
        return self


@pytest.mark.parametrize("kind", [nn.Sequential, Frozen])
def test_modules_that_a_training_loop_would_wake_are_named(kind: type[nn.Sequential]) -> None:
    model = kind(nn.Linear(8, 8), nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout())))
    model[1].eval()
    workload = Workload(model, targets.vectors(), loss_fn=loss)
    assert workload.set_mode() == (("1",) if kind is nn.Sequential else ())
    assert workload.set_mode() == ()
    model.eval()
    assert workload.set_mode() == ()  # as a pretrained model comes
    assert model.training
    assert model[1].training == (kind is nn.Sequential)


def test_what_was_in_evaluation_mode_is_said_and_stays_so_after_tuning() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Dropout(), nn.Linear(8, 2)))
    model[1].eval()
    workload = Workload(model, targets.vectors(), step_fn=lambda model, batch: model(batch[0]).square().mean())
    with LocalBench(workload, devices.choose("cpu"), Options(strategies=("batching",))) as bench:
        (said,) = (caveat for caveat in bench.briefing.caveats if "evaluation mode" in caveat)
    assert said.startswith("found 1 in evaluation mode in a model that is in training mode")
    assert [module.training for module in model.modules()] == [True, True, False, False, False]


def test_an_optimizer_that_needs_a_closure_is_refused_and_others_are_not() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any, *rest: Any, **more: Any) -> Any:  # type: ignore[override]  # it needs a closure
            return super().step(closure)

    model = targets.mlp()
    for needy in (torch.optim.LBFGS, lambda params: Own(params, lr=0.1)):
        with pytest.raises(
            WorkloadError,
            match=r"step\(\) of the optimizer \w+ needs a closure .*; expected an optimizer .*Pass update_fn",
        ):
            Workload(model, targets.vectors(), loss_fn=loss, optimizer=needy).make_optimizer()
    for plain in (torch.optim.Adam, torch.optim.Adagrad, torch.optim.Rprop, torch.optim.ASGD):
        made = Workload(model, targets.vectors(), loss_fn=loss, optimizer=plain).make_optimizer()
        assert made is not None
        torch.optim.lr_scheduler.StepLR(made, 1)  # puts a wrapper in the place of its step
        assert Workload(model, targets.vectors(), loss_fn=loss, optimizer=made).make_optimizer() is made


def test_an_optimizer_that_needs_a_closure_is_tuned_with_update_fn() -> None:
    model = nn.Linear(8, 2)

    def update(model: nn.Module, optimizer: Any, batch: Any) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            found = F.cross_entropy(model(batch[0]), batch[1])
            found.backward()  # type: ignore[no-untyped-call]
            return found

        found: torch.Tensor = optimizer.step(closure)
        return found

    data = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(3)]
    workload = Workload(model, data, update_fn=update, optimizer=lambda params: torch.optim.LBFGS(params, max_iter=2))
    with LocalBench(workload, devices.choose("cpu"), Options(strategies=("batching",))) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured


def test_the_evaluation_of_a_training_is_inference_on_its_own_batches() -> None:
    model, batches = nn.Linear(2, 2), [torch.zeros(1, 2)]
    optimizer = torch.optim.SGD(model.parameters())
    training = Workload(model, [], optimizer=optimizer, eval_loader=batches, global_batch_size=8, max_grad_norm=1.0)
    evaluation = training.evaluation
    assert evaluation is not None
    assert (evaluation.model, evaluation.loader, evaluation.mode) == (model, batches, "inference")
    assert evaluation.make_optimizer() is None
    assert evaluation.optimizer is optimizer  # its state is in memory meanwhile
    assert evaluation.evaluation is None
    assert Workload(model, batches).evaluation is None
    assert Workload(model, [], eval_loader=batches, mode="inference").evaluation is None


def test_several_optimizers_are_one_set() -> None:
    workload = gans.workload()
    made = workload.make_optimizer()
    assert made is not None
    assert as_given(made) == workload.optimizer


REFUSED_UPDATES: list[tuple[dict[str, Any], str]] = [
    ({"loss_fn": F.cross_entropy}, "found loss_fn beside update_fn"),
    ({"step_fn": targets.token_mean, "max_grad_norm": 1.0}, "found step_fn, max_grad_norm beside update_fn"),
    ({"mode": "inference"}, "found mode='inference' beside update_fn, which trains"),
    ({"eval_loader": []}, "found eval_loader beside update_fn"),
    ({"optimizer": None}, "found update_fn without an optimizer"),
    ({"optimizer": {}}, "optimizer is a dict; expected a torch.optim.Optimizer"),
    ({"optimizer": [sgd(), sgd()]}, "optimizer is 2 optimizers; expected one. For several"),
    ({"update_fn": 3}, "update_fn is an int; expected a function"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED_UPDATES)
def test_what_does_not_go_with_a_step_of_the_user_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        gans.workload(**changes)
    assert said in str(error.value)


def test_each_of_several_optimizers_must_hold_parameters_of_the_model() -> None:
    workload = gans.workload()
    optimizers = {**gans.optimizers(workload.model), "other": sgd()}  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="the optimizer SGD holds none of the model's trainable parameters"):
        Workload(workload.model, [], update_fn=gans.update, optimizer=optimizers).make_optimizer()


@pytest.mark.parametrize("models", [{"one": targets.mlp()}, [targets.mlp()]])
def test_several_models_are_one_module(models: Any) -> None:
    assert "Pass several models as one torch.nn.ModuleDict" in refusal(model=models)


def test_a_step_of_the_user_sets_its_modes_by_itself() -> None:
    workload = gans.workload()
    workload.model["critic"].eval()  # type: ignore[index]
    assert workload.set_mode() == ()
    assert not workload.model["critic"].training  # type: ignore[index]
    assert workload.model["generator"].training  # type: ignore[index]
