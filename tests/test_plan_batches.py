"""The batches of a plan: plans that do not concern the order share those of the user's loader."""

from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from autofit.core.errors import SpaceError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.prepare import PlanBatches
from autofit.workloads.sources import source_of
from autofit.workloads.step import StepBatch
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import bench_of
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import Buckets, Sentences, text_lengths

GROUPED = Plan(values={"length_grouping": True})


def test_plans_with_the_same_batches_share_a_store() -> None:
    source = source_of(targets.sentences(tuple(text_lengths(64))))
    batches = PlanBatches(source)
    own = batches.store(Plan())
    assert own.source is source
    assert batches.store(Plan(values={"precision": "bf16", "length_grouping": False})) is own
    grouped = batches.store(GROUPED)
    assert grouped is not own
    assert batches.store(GROUPED.replace(precision="bf16")) is grouped
    assert batches.source(GROUPED) is grouped.source is source.by_length


def test_a_loader_that_does_not_support_the_plan_is_a_space_error() -> None:
    lengths = text_lengths(64)
    loader = DataLoader(Sentences(lengths), batch_sampler=Buckets(lengths, 8), collate_fn=pad)
    with pytest.raises(SpaceError, match="Buckets decides which samples are batched together"):
        PlanBatches(source_of(loader)).store(GROUPED)


class Classifier(nn.Module):
    """A classifier of texts by the mean of their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.unsqueeze(-1)
        output: torch.Tensor = self.head((torch.tanh(self.embed(ids)) * mask).sum(1) / mask.sum(1))
        return output


LENGTHS = [2 * length + 1 for length in text_lengths(600)]
LONGEST = max(LENGTHS)


def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["label"] % 4)


def workload() -> Workload:
    loader = DataLoader(Texts(LENGTHS), 16, shuffle=True, collate_fn=pad)
    return Workload(Classifier(), loader, step_fn=step_fn, global_batch_size=16)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the batches that steps ran. A guard would restore a list that the workload itself fills."""
    lengths: list[int] = []
    make = StepBatch.alike

    def alike(parts: Any) -> StepBatch:
        lengths.extend(part["input_ids"].shape[1] for part in parts)
        return make(parts)

    monkeypatch.setattr(StepBatch, "alike", alike)
    return lengths


def ran(seen: list[int], purpose: Purpose, **values: bool | int) -> tuple[Outcome, list[int]]:
    """Returns the outcome of a plan and the lengths of the batches that it ran."""
    with bench_of(workload(), numerics="any") as bench:
        seen.clear()
        return bench.evaluate(bench.briefing.space.baseline.replace(**values), purpose), list(seen)


def test_a_plan_is_timed_on_its_own_batches_and_proven_on_the_longest(seen: list[int]) -> None:
    own, users = ran(seen, Purpose.BLOCK)
    grouped, short = ran(seen, Purpose.BLOCK, length_grouping=True)
    assert own.measurement is not None
    assert grouped.measurement is not None
    assert fmean(short) < 0.7 * fmean(users)
    assert max(short) > 1.5 * fmean(short)  # long samples come too, together
    useful = [found.measurement.tokens_per_step for found in (own, grouped) if found.measurement]
    assert useful[0] == pytest.approx(useful[1], rel=0.05)  # both are compared on as many useful tokens
    proof, proven = ran(seen, Purpose.PROOF, length_grouping=True)
    assert proof.measured
    assert proven[:3] == [LONGEST] * 3


def test_a_plan_that_the_loader_does_not_support_is_rejected_with_the_reason() -> None:
    lengths = text_lengths(64)
    loader = DataLoader(Texts(lengths), batch_sampler=Buckets(lengths, 8), collate_fn=pad)
    with bench_of(Workload(Classifier(), loader, step_fn=step_fn)) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline.replace(length_grouping=True), Purpose.PROBE)
    assert outcome.status is Status.REJECTED
    assert "Buckets decides which samples are batched together" in outcome.reason
