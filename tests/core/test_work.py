"""What a training step does, in another precision."""

import pytest

from autofit.core.plan import Plan
from autofit.core.work import Ceilings, StepWork, Work
from autofit.estimators import samples_per_s

DEVICE = Ceilings(flops_per_s={"fp32": 1e12, "bf16": 8e12}, bytes_per_s=1e9, operator_s=1e-5, ahead=True)


MICRO = Work(flops={"fp32": 10**10}, traffic_bytes=20 * 10**6, operators=100)


PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 2})


def test_another_precision_changes_the_products_only() -> None:
    step = StepWork(micro=MICRO, update=Work())
    faster = samples_per_s(PLAN, step.in_precision("fp32", "bf16"), DEVICE)
    assert faster == pytest.approx(8 / (2 * (0.010 / 8 + 0.020)))
