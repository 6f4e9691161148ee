"""The order that ceilings give: more work is slower, and what is issued ahead hides behind what runs."""

import pytest

from autofit.core.plan import Plan
from autofit.core.work import Ceilings, StepWork, Work
from autofit.memory.roofline import in_precision, samples_per_s

DEVICE = Ceilings(flops_per_s={"fp32": 1e12, "bf16": 8e12}, bytes_per_s=1e9, operator_s=1e-5, ahead=True)
MICRO = Work(flops={"fp32": 10**10}, traffic_bytes=20 * 10**6, operators=100)
UPDATE = Work(traffic_bytes=5 * 10**6, operators=10)
PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 2})


def test_products_and_traffic_add_up_and_the_update_comes_once() -> None:
    # A micro batch: 10 ms of products, 20 ms of traffic; the update: 5 ms of traffic.
    found = samples_per_s(PLAN, StepWork(micro=MICRO, update=UPDATE), DEVICE)
    assert found == pytest.approx(8 / (2 * 0.030 + 0.005))


def test_a_host_issues_between_its_work_and_an_accelerator_beside_it() -> None:
    many = MICRO.model_copy(update={"operators": 10_000})
    step = StepWork(micro=many, update=Work())
    assert samples_per_s(PLAN, step, DEVICE) == pytest.approx(8 / (2 * 0.1))
    host = DEVICE.model_copy(update={"ahead": False})
    assert samples_per_s(PLAN, step, host) == pytest.approx(8 / (2 * 0.13))


def test_without_a_ceiling_or_any_work_there_is_no_order() -> None:
    step = StepWork(micro=MICRO, update=Work())
    assert samples_per_s(PLAN, in_precision(step, "fp32", "fp8"), DEVICE) is None
    assert samples_per_s(PLAN, StepWork(micro=Work(), update=Work()), DEVICE) is None


def test_another_precision_changes_the_products_only() -> None:
    step = StepWork(micro=MICRO, update=Work())
    faster = samples_per_s(PLAN, in_precision(step, "fp32", "bf16"), DEVICE)
    assert faster == pytest.approx(8 / (2 * (0.010 / 8 + 0.020)))
