"""What a training reached beside what its plan promised."""

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.core.recommendation import Recommendation
from autofit.integrations.huggingface import PlanCheck, apply
from autofit.integrations.huggingface.plan_check import PlanComparison
from autofit.integrations.reached import promised_per_s
from tests.conformance.test_exporters import OWN, recommendation
from tests.fakes import FakeTime
from tests.integrations.huggingface.training import arguments, trainer

pytestmark = pytest.mark.slow


def promised(**values: KnobValue) -> Recommendation:
    return recommendation(OWN.replace(**values)).model_copy(update={"rate_per_s": 100.0})


class Slow(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Takes the time between steps, and much more in an evaluation."""

    def __init__(self, between_s: float = 0.0) -> None:
        self.between_s = between_s

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        time.sleep(self.between_s)


def test_the_speed_is_reported_once_at_the_end(tmp_path: Path) -> None:
    texts: list[str] = []
    found = promised(micro_batch_size=4, accumulation_steps=2)
    check = PlanCheck(found, warm_up_steps=2, report=texts.append)
    started = time.perf_counter()
    trainer(apply(found, arguments(tmp_path, max_steps=6)), [check]).train()
    assert check.reached is not None
    rate = check.reached.samples_per_s
    assert rate > 4 * 8 / (time.perf_counter() - started)  # four steps of eight samples took less than all of it
    assert check.reached.inside_per_s >= rate
    assert len(texts) == 1
    assert texts[0].startswith(f"the plan promised 100 samples/s, this training reaches {rate:.4g} ({rate / 100:.0%})")


def test_time_between_steps_is_measured_apart(tmp_path: Path) -> None:
    found = promised()
    check = PlanCheck(found, warm_up_steps=1, report=str)
    args = apply(found, arguments(tmp_path, max_steps=4, logging_strategy="steps", logging_steps=1))
    trainer(args, [check, Slow(0.2)]).train()
    assert check.reached is not None
    assert check.reached.samples_per_s < 8 / 0.2
    assert check.reached.inside_per_s > check.reached.samples_per_s


def test_an_evaluation_is_not_a_part_of_the_training(tmp_path: Path) -> None:
    clock = FakeTime()
    check = PlanCheck(promised(), warm_up_steps=1, report=str)
    args = arguments(tmp_path)
    args.per_device_train_batch_size = 8
    run = trainer(args, [check])
    given = {"model": run.model, "optimizer": run.create_optimizer()}
    check.on_train_begin(run.args, None, None, train_dataloader=run.get_train_dataloader(), **given)
    check._timed.clock = clock
    for step in range(4):
        check.on_step_begin(args, None, None)
        clock.advance(1.0)
        check.on_step_end(args, None, None)
        clock.advance(1.0)
        if step == 1:
            check.on_evaluate(args, None, None)
            clock.advance(100.0)
    check.on_train_end(args, None, None)
    assert check.reached == PlanComparison(100.0, samples_per_s=8 / 2, inside_per_s=8 / 1)


class SlowInside(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Takes time between the beginning of a step and its forward pass."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        time.sleep(0.2)


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_the_overhead_is_what_is_not_the_step_that_was_measured(tmp_path: Path, max_grad_norm: float) -> None:
    texts: list[str] = []
    found = promised(micro_batch_size=4, accumulation_steps=2)
    check = PlanCheck(found, warm_up_steps=1, report=texts.append)
    fields = {"max_steps": 4, "max_grad_norm": max_grad_norm, "logging_strategy": "steps", "logging_steps": 1}
    run = trainer(apply(found, arguments(tmp_path, **fields)), [check, SlowInside(), Slow(0.2)])
    run.model.transformer.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    run.train()
    assert check.reached is not None
    assert check.reached.overhead_s is not None
    step_s = 8 / check.reached.samples_per_s
    assert 0.4 < check.reached.overhead_s < step_s - 2 * 0.3
    assert "are overhead of the trainer" in texts[0]
    assert not run.model._forward_hooks
    assert not run.model._forward_pre_hooks


def test_the_overhead_of_a_compiled_model_is_not_timed(tmp_path: Path) -> None:
    check = PlanCheck(promised(), warm_up_steps=1, report=str)
    run = trainer(apply(promised(), arguments(tmp_path)), [check])
    given = {"model": run.model, "optimizer": run.create_optimizer(), "train_dataloader": run.get_train_dataloader()}
    run.args.torch_compile = True
    check.on_train_begin(run.args, None, None, **given)
    assert not run.model._forward_hooks


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
        trainer(args, [PlanCheck(promised(**planned))]).train()


def test_too_few_steps_are_not_compared(tmp_path: Path) -> None:
    texts: list[str] = []
    check = PlanCheck(promised(), report=texts.append)
    trainer(apply(promised(), arguments(tmp_path)), [check]).train()
    assert check.reached is None
    assert texts == ["the plan's speed was not checked: found 2 optimizer steps, and the first 5 are warm-up"]


def test_a_plan_tuned_for_tokens_promises_the_samples_of_its_proof() -> None:
    found = promised()
    tokens = found.model_copy(update={"objective": found.objective.model_copy(update={"unit": "tokens"})})
    assert promised_per_s(found) == 100.0
    assert promised_per_s(tokens) == found.proof.samples_per_s


def test_peaks_are_said_where_they_are_read() -> None:
    text = str(PlanComparison(100.0, 95.0, 100.0, promised_bytes=2**30, peak_bytes=2**31))
    assert "(95%)" in text
    assert "promised a peak of 1 GiB, this training allocates 2 GiB" in text
