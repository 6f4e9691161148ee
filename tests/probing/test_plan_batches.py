"""The batches of a plan: plans that do not concern the order share those of the user's loader."""

import pytest
from torch.utils.data import DataLoader

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.probing.plan_batches import PlanBatches
from autofit.workloads.batches import BatchSource
from tests.probing import targets
from tests.workloads.loaders import pad
from tests.workloads.ragged import Buckets, Sentences, text_lengths

GROUPED = Plan(values={"length_grouping": True})


def test_plans_with_the_same_batches_share_a_store() -> None:
    source = BatchSource.of(targets.sentences(tuple(text_lengths(64))))
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
        PlanBatches(BatchSource.of(loader)).store(GROUPED)
