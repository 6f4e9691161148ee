"""A plan for what a real Trainer trains, from the search to two steps under it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

import autofit
from autofit import strategies
from autofit.core.errors import UsageError
from autofit.integrations import huggingface
from autofit.integrations.huggingface import PlanCheck, apply, tune_trainer
from tests.conformance.test_exporters import OWN, answer
from tests.cpu import needs_bf16
from tests.integrations.huggingface.training import LAYERS, arguments, samples, trainer

SEARCH: dict[str, Any] = {
    "study": ":memory:",
    "progress": False,
    "time_budget": 60,
    "strategies": ["batching", "precision", "checkpointing"],
}


class Scaled(Trainer):  # type: ignore[misc]  # transformers has no types here
    """Has a loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        loss = 1000 * super().compute_loss(model, inputs)
        return (loss, None) if return_outputs else loss


class Stepping(Trainer):  # type: ignore[misc]  # transformers has no types here
    """Has a step of its own."""

    def training_step(self, *inputs: Any, **others: Any) -> Any:
        return super().training_step(*inputs, **others)


def asked(monkeypatch: pytest.MonkeyPatch, make: Any, **given: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Returns the model, the loader and the arguments that `autofit.tune` gets."""
    calls: list[tuple[Any, Any, dict[str, Any]]] = []
    monkeypatch.setattr(huggingface, "tune", lambda model, loader, **chosen: calls.append((model, loader, chosen)))
    for name in ("with_kept_batch", "for_trainer"):
        monkeypatch.setattr(huggingface, name, lambda fit, *_: fit)
    tune_trainer(make, **given)
    return calls[0]


def test_the_workload_is_what_the_trainer_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(
        tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=0.5, optim="sgd"
    )
    made = trainer(args)
    model, loader, chosen = asked(monkeypatch, lambda: made, seed=3, without=["batching"])
    assert model is made.model
    assert type(loader) is torch.utils.data.DataLoader
    assert next(iter(loader))["input_ids"].shape == (4, 8)
    assert type(chosen["optimizer"]) is torch.optim.SGD
    assert (chosen["global_batch_size"], chosen["max_grad_norm"], chosen["seed"]) == (8, 0.5, 3)
    assert {"batching", "activation_offload"} <= set(chosen["without"])
    assert not {"precision", "optimizer_implementation"} & set(chosen["without"])
    assert made.optimizer is None  # the Trainer is as it was


def test_choices_of_the_call_replace_those_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        return trainer(arguments(tmp_path, max_grad_norm=0.0))

    assert asked(monkeypatch, make)[2]["max_grad_norm"] is None
    assert asked(monkeypatch, make, global_batch_size=16)[2]["global_batch_size"] == 16
    assert "global_batch_size" not in asked(monkeypatch, make, max_global_batch_size=16)[2]


def test_a_batch_that_was_kept_is_said_with_what_frees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_of_plan = autofit.Fit(answer(OWN))
    monkeypatch.setattr(huggingface, "tune", lambda model, loader, **chosen: fit_of_plan)

    def caveats(**given: Any) -> tuple[str, ...]:
        return tune_trainer(lambda: trainer(arguments(tmp_path)), **given).caveats

    said = caveats()[-1]
    size = fit_of_plan.plan.global_batch_size
    assert f"the {size} samples of an optimizer step are those of the arguments" in said
    assert f"max_global_batch_size={4 * size}" in said
    assert "learning rate" in said
    assert caveats(global_batch_size=16) == caveats(max_global_batch_size=16) == fit_of_plan.caveats


def test_the_loss_is_that_of_compute_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {name: torch.stack([s[name] for s in samples(4)]) for name in ("input_ids", "labels")}
    losses = []
    for kind in (Trainer, Scaled):
        made = trainer(arguments(tmp_path), kind=kind)
        made.model.eval()
        step = asked(monkeypatch, lambda made=made: made)[2]["step_fn"]
        losses.append(step(made.model, batch).item())
        assert set(batch) == {"input_ids", "labels"}
    assert losses[1] == pytest.approx(1000 * losses[0])


def test_label_smoothing_leaves_the_batch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(arguments(tmp_path, label_smoothing_factor=0.1))
    batch = {name: torch.stack([s[name] for s in samples(4)]) for name in ("input_ids", "labels")}
    step = asked(monkeypatch, lambda: made)[2]["step_fn"]
    assert step(made.model, batch).item() > 0
    assert set(batch) == {"input_ids", "labels"}


def test_a_precision_that_the_user_chose_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(arguments(tmp_path, bf16=True))
    model, loader, chosen = asked(monkeypatch, lambda: made)
    types = []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    chosen["step_fn"](model, next(iter(loader)))
    assert types == [torch.bfloat16]
    assert {"precision", "optimizer_implementation"} <= set(chosen["without"])  # the default optimizer is fused
    half = trainer(arguments(tmp_path))
    half.args.fp16 = True  # making the arguments with it needs a GPU
    pinned = asked(monkeypatch, lambda: half, pinned={"micro_batch_size": 2})[2]["pinned"]
    assert pinned == {"precision": "fp16", "micro_batch_size": 2}


def test_checkpointing_that_the_user_chose_is_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(arguments(tmp_path, activation_checkpointing=True))
    model, _, _ = asked(monkeypatch, lambda: made)
    assert model.is_activation_checkpointing


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Stepping, {}, r"found Stepping\.training_step"),
        (Trainer, {"use_liger_kernel": True}, "found use_liger_kernel=True"),
    ],
)
def test_a_step_that_is_not_run_is_refused_by_name(
    kind: Any, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = trainer(arguments(tmp_path), kind=kind)
    for name, value in fields.items():
        setattr(made.args, name, value)
    with pytest.raises(UsageError, match=message):
        tune_trainer(lambda: made)


def test_a_step_that_was_replaced_in_the_object_is_refused_too(tmp_path: Path) -> None:
    made = trainer(arguments(tmp_path))
    made.training_step = made.training_step
    with pytest.raises(UsageError, match=r"Trainer\.training_step"):
        tune_trainer(lambda: made)


def test_a_factory_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="returned a dict"):
        tune_trainer(lambda: {})


@needs_bf16
@pytest.mark.slow
def test_from_the_search_to_two_steps_under_the_plan(tmp_path: Path) -> None:
    """The whole way of a user."""
    args = arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=7)
    fit = tune_trainer(
        lambda: trainer(args), pinned={"micro_batch_size": 4, "precision": "bf16", "checkpointed_blocks": 2}, **SEARCH
    )
    assert isinstance(fit, autofit.Fit)
    assert (fit.plan.micro_batch_size, fit.plan.global_batch_size) == (4, 8)
    assert fit.baseline.plan.micro_batch_size == 2
    path = tmp_path / "autofit.yaml"
    fit.save(path)
    made = trainer(args)
    changed = apply(path, args, made.model)
    made = trainer(changed, [PlanCheck(path)], model=made.model)
    seen: list[tuple[int, torch.dtype]] = []
    blocks = [0, 0, 0, 0]

    def count(place: int) -> Any:
        def run(module: Any, inputs: Any) -> None:
            blocks[place] += 1

        return run

    for place, layer in enumerate(made.model.transformer.h):
        layer.mlp.register_forward_pre_hook(count(place))
    made.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append((len(output), output.dtype)))
    made.train()
    assert made.state.global_step == 7
    assert seen == [(4, torch.bfloat16)] * 14
    assert blocks == [28, 28, 14, 14]


@pytest.mark.slow
def test_every_block_is_one_switch_of_each_trainer_that_has_one(tmp_path: Path) -> None:
    args = arguments(tmp_path, per_device_train_batch_size=2)
    fit = tune_trainer(lambda: trainer(args), pinned={"checkpointed_blocks": LAYERS}, **SEARCH)
    path = tmp_path / "autofit.yaml"
    fit.save(path)
    switches = {
        "huggingface": "activation_checkpointing",
        "axolotl": "gradient_checkpointing",
        "torchtitan": "activation_checkpoint:full",
    }
    for target, switch in switches.items():
        export = autofit.load(path).export(target)
        assert export.settings[switch] is True
        assert "checkpointed_blocks" not in {*export.unmapped, *export.by_hand}
    for target in ("accelerate", "lightning", "deepspeed"):
        assert "gradient_checkpointing_enable(" in autofit.load(path).export(target).by_hand["checkpointed_blocks"]
    made = trainer(apply(path, args))
    runs: list[Any] = []
    made.model.transformer.h[LAYERS - 1].mlp.register_forward_pre_hook(lambda module, inputs: runs.append(module))
    made.train()
    assert len(runs) == 2 * 2 * fit.plan.accumulation_steps  # two steps; each pass runs again in backward


def test_the_techniques_that_are_not_searched_exist() -> None:
    assert set(huggingface.NOT_IN_A_TRAINER) <= {strategy.name for strategy in strategies.members()}
