"""The advice on expandable segments, against a process in which they are on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from autofit.search.allocator_advice import AllocatorAdvice
from torch import nn

import autofit
from autofit.core.briefing import Options
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.estimators.traced import Traced
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.request import Request
from autofit.search.search import search
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


def named(text: str, words: str) -> float:
    """Returns the bytes that a caveat names after these words."""
    found = re.search(rf"{words} ([\d.]+) MiB", text)
    assert found is not None, text
    return float(found[1]) * MIB


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
    estimated = named(text, "would reserve about")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with opened() as bench:
        expandable = proven(bench, plan)
    assert plain.reserved_bytes is not None
    assert expandable.reserved_bytes is not None
    assert estimated == pytest.approx(expandable.reserved_bytes, rel=0.06)
    assert expandable.reserved_bytes < 0.9 * plain.reserved_bytes


NAMES = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("set_now", "options"),
    [({NAMES[0]: "max_split_size_mb:64"}, "max_split_size_mb:64"), ({NAMES[1]: ""}, "")],
    ids=["options are set", "an older name is set to nothing"],
)
def test_a_search_measures_what_the_option_saves_in_a_process_of_its_own(
    set_now: dict[str, str], options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_now.items():
        monkeypatch.setenv(name, value)
    pinned = OPTIONS.model_copy(update={"pinned": {"micro_batch_size": 8}})
    with RemoteBench(Target(f"{__file__}:make_rising", device="cuda", options=pinned)) as bench:
        found = search(bench, Request(study=":memory:"))
        assert bench.briefing.account is not None
        assert bench.briefing.account.settings == options
    expected = ",".join(filter(None, (options, "expandable_segments:True")))
    (text,) = (each for each in found.caveats if "expandable segments" in each)
    assert "measured by a second proof of this plan" in text
    assert f"set PYTORCH_ALLOC_CONF={expected}" in text
    monkeypatch.delenv(NAMES[1], raising=False)
    monkeypatch.setenv(NAMES[0], expected)  # what a user does who follows the advice
    with opened() as bench:
        assert not bench.briefing.environment.comparable(found.environment)
        reserved, plain = proven(bench, found.plan).reserved_bytes, found.proof.memory.reserved_bytes
    assert reserved is not None
    assert plain is not None
    now, then = text.split("With expandable segments")
    assert named(now, "reserves") == pytest.approx(plain, rel=0.01)
    assert named(then, "reserves") == pytest.approx(reserved, rel=0.01)
    assert reserved < 0.9 * plain
