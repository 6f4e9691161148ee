"""A plan in `TrainingArguments`, and a training that contradicts its plan."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.fit import Fit
from autofit.integrations.huggingface import PlanCheck, apply
from tests.conformance.test_exporters import OWN, answer, of_blocks
from tests.integrations.huggingface.training import arguments, model, trainer


def plan(**values: KnobValue) -> Fit:
    return Fit(answer(OWN.replace(**values)))


def test_the_plan_s_fields_are_set_and_the_others_kept(tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=0.5, max_grad_norm=3.0, per_device_train_batch_size=1, seed=7)
    changed = apply(plan(micro_batch_size=4, accumulation_steps=3, precision="bf16"), args)
    assert (changed.per_device_train_batch_size, changed.gradient_accumulation_steps, changed.bf16) == (4, 3, True)
    assert (changed.learning_rate, changed.max_grad_norm, changed.seed, changed.max_steps) == (0.5, 3.0, 7, 2)
    assert args.per_device_train_batch_size == 1


def test_what_the_plan_switches_off_is_off(tmp_path: Path) -> None:
    args = arguments(tmp_path, activation_checkpointing=True, torch_compile=True)
    changed = apply(plan(compile="off"), args)
    assert changed.activation_checkpointing is False
    assert changed.torch_compile is False
    assert apply(plan(), args).torch_compile is True  # the plan does not say


@pytest.mark.parametrize(
    ("fields", "values", "message"),
    [
        ({"fp16": True}, {"precision": "bf16"}, "found fp16=True, and the plan has precision=bf16"),
        ({"bf16": True}, {"precision": "fp32"}, "found bf16=True, and the plan has precision=fp32"),
        ({"auto_find_batch_size": True}, {}, "auto_find_batch_size=True, .* the micro batch 8"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}}},
            {"accumulation_steps": 2},
            "num_steps=4 in accelerator_config, .* accumulation_steps=2",
        ),
    ],
)
def test_arguments_that_contradict_the_plan_are_refused(
    fields: dict[str, Any], values: dict[str, KnobValue], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        apply(plan(**values), arguments(tmp_path, **fields))


def clipped(norm: str) -> Fit:
    return Fit(answer(OWN, settings={"max_grad_norm": norm}))


def test_clipping_is_that_of_the_plan_unless_another_is_asked_for(tmp_path: Path) -> None:
    assert apply(clipped("5.0"), arguments(tmp_path)).max_grad_norm == 5.0
    assert apply(clipped("5.0"), arguments(tmp_path, max_grad_norm=5)).max_grad_norm == 5.0
    assert apply(clipped("None"), arguments(tmp_path)).max_grad_norm == 1.0
    for asked in (3.0, 0.0):
        with pytest.raises(UsageError, match=rf"found max_grad_norm={asked}, and the plan has max_grad_norm=5\.0"):
            apply(clipped("5.0"), arguments(tmp_path, max_grad_norm=asked))


def test_a_precision_that_the_environment_sets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(UsageError, match=r"MIXED_PRECISION=bf16 in the environment, and the plan has .*fp32"):
        apply(plan(precision="fp32"), arguments(tmp_path))
    assert apply(plan(precision="bf16"), arguments(tmp_path)).bf16 is True


@pytest.mark.parametrize(("name", "value"), [("fsdp", True), ("deepspeed", "zero3.json")])
def test_sharding_is_refused(name: str, value: object, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    setattr(args, name, value)  # making the arguments with it needs several processes
    with pytest.raises(UsageError, match=f"found {name}={value!r}.*without sharding"):
        apply(plan(), args)


def test_a_precision_that_the_plan_does_not_name_is_kept(tmp_path: Path) -> None:
    values = {knob: value for knob, value in OWN.values.items() if knob != "precision"}
    found = answer(OWN.model_copy(update={"values": values}))
    assert apply(found, arguments(tmp_path, bf16=True)).bf16 is True


def test_tf32_that_was_on_while_the_plan_was_measured_stays_on(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    assert apply(plan(compile="default"), args).tf32 is False
    args.tf32 = True  # making the arguments with it needs a GPU
    with pytest.raises(ValueError, match="tf32 requires Ampere"):
        apply(plan(compile="default"), args)


@pytest.mark.parametrize(("knob", "value", "said"), [("attention", "sdpa", "attn_implementation"), ("x", 1, "x=1")])
def test_a_knob_without_a_field_is_named(knob: str, value: KnobValue, said: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"cannot express: .*{said}"):
        apply(plan(**{knob: value}), arguments(tmp_path))


def test_another_device_is_named(tmp_path: Path) -> None:
    found = answer(OWN)
    environment = found.environment.model_copy(update={"device_type": "cuda", "device_name": "H100"})
    with pytest.warns(UserWarning, match=r"proven on H100 \(cuda\), and these arguments train on cpu"):
        apply(found.model_copy(update={"environment": environment}), arguments(tmp_path))


@dataclass
class OnTwo(TrainingArguments):  # type: ignore[misc]  # transformers has no types here
    """Arguments of one of two processes."""

    @property
    def world_size(self) -> int:
        return 2


def test_several_devices_share_the_accumulation_steps(tmp_path: Path) -> None:
    args = OnTwo(output_dir=str(tmp_path), use_cpu=True)
    changed = apply(plan(micro_batch_size=2, accumulation_steps=6), args)
    assert (changed.per_device_train_batch_size, changed.gradient_accumulation_steps) == (2, 3)
    with pytest.raises(UsageError, match=r'found 2 devices.*accumulation_steps=3.*pinned={"accumulation_steps": 2}'):
        apply(plan(accumulation_steps=3), args)
    of_each = apply(plan(accumulation_steps=3, layout="replicated"), args)
    assert (of_each.gradient_accumulation_steps, of_each.ddp_find_unused_parameters) == (3, False)


def test_every_block_is_a_field_and_a_part_is_switched_on_in_the_model(tmp_path: Path) -> None:
    every, part = model(), model()
    changed = apply(of_blocks(4, checkpointed_blocks=4), arguments(tmp_path), every)
    assert changed.activation_checkpointing is True
    assert changed.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert not every.is_activation_checkpointing
    changed = apply(of_blocks(4, checkpointed_blocks=1), arguments(tmp_path, activation_checkpointing=True), part)
    assert changed.activation_checkpointing is False
    assert [layer.gradient_checkpointing for layer in part.transformer.h] == [True, False, False, False]


def test_autofit_does_not_import_transformers() -> None:
    code = "import sys, autofit, autofit.api; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_training_under_its_plan_runs(tmp_path: Path) -> None:
    found = plan(micro_batch_size=4, accumulation_steps=2)
    run = trainer(apply(found, arguments(tmp_path, max_steps=2)), [PlanCheck(found)])
    run.train()
    assert run.state.global_step == 2


@pytest.mark.parametrize(
    ("planned", "fields", "message"),
    [
        ({"micro_batch_size": 4}, {"per_device_train_batch_size": 2}, "micro_batch_size=2 .* the plan has 4"),
        ({"accumulation_steps": 3}, {"gradient_accumulation_steps": 2}, "accumulation_steps=2 .* the plan has 3"),
        ({"precision": "bf16"}, {}, "mixed_precision=no .* the plan has bf16"),
        ({"precision": "fp32"}, {"bf16": True}, "mixed_precision=bf16 .* the plan has no"),
    ],
)
def test_a_training_that_contradicts_the_plan_is_refused(
    planned: dict[str, KnobValue], fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    args = arguments(tmp_path, **{"per_device_train_batch_size": planned.get("micro_batch_size", 8), **fields})
    with pytest.raises(UsageError, match=message):
        trainer(args, [PlanCheck(plan(**planned))]).train()
