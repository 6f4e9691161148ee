"""A training that contradicts its plan is refused when it begins."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.answer import Answer
from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.integrations.huggingface import PlanCheck, apply
from tests.conformance.test_exporters import OWN, answer
from tests.integrations.huggingface.training import arguments, trainer


def promised(**values: KnobValue) -> Answer:
    return answer(OWN.replace(**values))


def test_a_training_under_its_plan_runs(tmp_path: Path) -> None:
    found = promised(micro_batch_size=4, accumulation_steps=2)
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
        trainer(args, [PlanCheck(promised(**planned))]).train()
