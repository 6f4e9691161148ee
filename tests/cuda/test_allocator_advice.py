"""The advice on expandable segments, against a process in which they are on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import autofit
from autofit.core.briefing import Options
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.estimators.traced import Traced
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.allocator_advice import AllocatorAdvice
from tests.cuda.targets import own_loss, rows

MIB = 2**20
OPTIONS = Options(memory_budget="4GiB", strategies=("batching",), enforce=True)


class Rising(nn.Module):
    """Takes temporaries of growing size, one after the other: cached segments are too small for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2**16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for number in range(1, 5):
                x.new_empty(len(x), number * MIB)
        return x.square().mean() * self.weight.mean()


def make_rising() -> autofit.Workload:
    return autofit.Workload(Rising(), rows(), step_fn=own_loss)


@contextmanager
def opened() -> Iterator[RemoteBench]:
    with RemoteBench(Target(f"{__file__}:make_rising", device="cuda", options=OPTIONS)) as bench:
        yield bench


def proven(bench: RemoteBench, plan: Plan) -> Memory:
    outcome = bench.evaluate(plan, Purpose.PROOF)
    assert outcome.measurement is not None, outcome.reason
    return outcome.measurement.memory


def test_what_the_option_is_said_to_save_is_what_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as bench:
        space, account = SearchSpace(bench.briefing.space), bench.briefing.account
        limit = bench.briefing.budget.memory_bytes
        assert account is not None
        plan = space.at(space.baseline.combination, 8)
        traced = Traced(bench.trace, account, limit)
        traced.refine(plan)
        plain = proven(bench, plan)
        (text,) = AllocatorAdvice(account, [traced], space, limit).caveats(plan, plain)
    told = re.search(r"would reserve about ([\d.]+) MiB", text)
    assert told is not None, text
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with opened() as bench:
        expandable = proven(bench, plan)
    assert plain.reserved_bytes is not None
    assert expandable.reserved_bytes is not None
    assert float(told[1]) * MIB == pytest.approx(expandable.reserved_bytes, rel=0.06)
    assert expandable.reserved_bytes < 0.9 * plain.reserved_bytes
