"""A plan in a loop with Lightning's Fabric: its precision, and the lines for the loop."""

import warnings

import pytest
import torch
from torch import nn

from autofit.core.plan import KnobValue
from autofit.fit import Fit
from autofit.integrations.lightning import fabric_arguments
from tests.conformance.test_exporters import OWN, answer


def fit(settings: dict[str, str] | None = None, **values: KnobValue) -> Fit:
    plan = OWN.replace(**{"micro_batch_size": 4, "accumulation_steps": 2, **values})
    return Fit(answer(plan, settings=settings))


def test_the_arguments_of_fabric() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fabric_arguments(fit(precision="bf16")) == {"precision": "bf16-mixed"}


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (fit({"max_grad_norm": "0.01"}), r"Write fabric\.clip_gradients\(model, optimizer, max_norm=0\.01\) before"),
        (fit(cudnn_benchmark=True), r"Write torch\.backends\.cudnn\.benchmark = True before the first step"),
    ],
)
def test_what_fabric_has_no_argument_for_is_a_line_of_the_loop(plan: Fit, line: str) -> None:
    with pytest.warns(UserWarning, match=line):
        assert fabric_arguments(plan).keys() == {"precision"}


def test_fabric_computes_in_the_precision_of_the_plan() -> None:
    from lightning.fabric import Fabric  # noqa: PLC0415

    fabric = Fabric(accelerator="cpu", **fabric_arguments(fit(precision="bf16")))
    seen: list[torch.dtype] = []
    line = nn.Linear(2, 2)
    line.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    fabric.setup(line)(torch.randn(3, 2))
    assert seen == [torch.bfloat16]
