"""What cannot be traced is refused with its reason and its line."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autofit.core.errors import Untraceable
from autofit.core.plan import Plan
from autofit.memory.trace import Trace
from autofit.tracing.tracing import trace
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload
from tests.tracing.tiny import Asking, Gpt, words

CPU = torch.device("cpu")


def plan(size: int = 4, **values: bool | int | str) -> Plan:
    return Plan(values={"micro_batch_size": size, **values})


@pytest.mark.parametrize(
    ("question", "reason", "line"),
    [("length", "aten._local_scalar_dense", "ids.max().item()"), ("numpy", "numpy", "x.detach().numpy()")],
)
def test_what_cannot_be_traced_is_named_with_its_line(question: str, reason: str, line: str) -> None:
    with pytest.raises(Untraceable, match="cannot be traced") as caught:
        traced_by(Asking(question))
    assert reason in caught.value.reason
    assert line in caught.value.where
    assert "tiny.py:" in caught.value.where


def traced_by(model: nn.Module) -> Trace:
    batch = words(2)
    made = Workload(model, [batch], loss_fn=F.cross_entropy)
    rule = LossRule("loss_fn", lambda m, b: F.cross_entropy(m(b[0]), b[1]), False, "")
    return trace(made, rule, plan(2), batch, CPU)


def test_an_operator_without_a_fake_implementation_is_named() -> None:
    with torch.library._scoped_library("tracingtest", "FRAGMENT") as library:
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda x: x.clone(), "CPU")

        class Opaque(Gpt):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                output: torch.Tensor = torch.ops.tracingtest.opaque(super().forward(ids))
                return output

        with pytest.raises(Untraceable, match=r"tracingtest\.opaque"):
            traced_by(Opaque())


def test_a_compiled_model_is_refused() -> None:
    class OptimizedModule(nn.Module):  # by this name it is known; compiling takes seconds
        pass

    with pytest.raises(Untraceable, match=r"torch\.compile"):
        traced_by(OptimizedModule())
