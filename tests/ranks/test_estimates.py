"""`autofit.estimate` for several ranks, from one rank's traces in this machine's processes."""

from typing import Any

import pytest
import torch
from torch import distributed, nn

import autofit
from autofit.estimation.estimation import Estimation
from autofit.estimation.page import render
from autofit.tracing.ranks import fake_ranks
from tests.digests import digest_of
from tests.strategies.test_tensor_parallel import WORDS, Planned

WIDTH, CLASSES, BATCH = 64, 10, 8
NAMES = ("layout", "batching")
"""The techniques to consider: each further one takes time."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(x).relu())
        return out


def model() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(3)), nn.Linear(WIDTH, CLASSES))


def data() -> list[Any]:
    return [(torch.randn(BATCH, WIDTH), torch.randint(0, CLASSES, (BATCH,))) for _ in range(2)]


def estimate(ranks: int, layout: Any = None, **changes: Any) -> Estimation:
    arguments = {"model": model(), "loader": data(), "device": "cpu", "memory_budget": "4MiB", "strategies": NAMES}
    given: dict[str, Any] = {**arguments, "loss_fn": nn.CrossEntropyLoss(), **changes}
    return autofit.estimate(given.pop("model"), given.pop("loader"), ranks=ranks, layout=layout, **given)


def peaks(found: Estimation) -> dict[str, int]:
    return {row.name: row.largest.peak.value_bytes for row in found.rows if row.largest is not None}


def largest(found: Estimation) -> dict[str, int]:
    return {row.name: row.largest.plan.micro_batch_size for row in found.rows if row.largest is not None}


@pytest.mark.slow
def test_layouts_are_compared_and_a_larger_share_leaves_more_room() -> None:
    found = estimate(4)
    assert found.ranks == 4
    assert found.own.plan.values["layout"] == "replicated"
    sizes = largest(found)
    assert sizes["layout=replicated"] < sizes["layout=optimizer"] < sizes["layout=full"]
    text = str(found)
    assert text.startswith("On 4 x ")
    assert "layout=full" in text
    assert "on each of 4 ranks (global batch 32)" in " ".join(text.split())
    more = largest(estimate(8))
    assert more["layout=replicated"] == sizes["layout=replicated"]
    assert more["layout=full"] > sizes["layout=full"]


@pytest.mark.parametrize(
    ("layout", "beside"),
    [
        ("replicated", "gradient_as_bucket_view=True"),
        ("optimizer", "gradient_as_bucket_view=True"),
        pytest.param("full", "reshard_after_forward=False", marks=pytest.mark.slow),
        pytest.param("full", "gather_precision=bf16", marks=pytest.mark.slow),
    ],
)
def test_every_plan_has_the_layout_that_was_asked_for(layout: str, beside: str) -> None:
    found = estimate(2, layout)
    assert found.own.plan.values["layout"] == layout
    assert {row.largest.plan.values["layout"] for row in found.rows if row.largest is not None} == {layout}
    assert f"layout={layout}" in peaks(found)
    assert beside in peaks(found)
    assert Estimation.model_validate_json(found.model_dump_json(by_alias=True)) == found


def test_one_rank_has_no_layout() -> None:
    found = estimate(1)
    assert found.ranks == 1
    assert "layout" not in found.own.plan.values
    assert not any(row.knob == "layout" for row in found.rows)
    assert not any("layout" in each.name for each in found.refused)
    assert "rank" not in str(found)


def test_the_global_batch_is_that_of_all_ranks() -> None:
    found = estimate(2, "full", global_batch_size=32)
    plan = found.own.plan
    assert 2 * plan.micro_batch_size * plan.accumulation_steps == 32
    assert max(largest(found).values()) <= 16
    with pytest.raises(autofit.SpaceError, match="found a global batch of 32 for 3 ranks; expected a multiple of 3"):
        estimate(3, global_batch_size=32)


@pytest.mark.slow
def test_an_estimate_changes_nothing_and_leaves_no_group() -> None:
    made, loader = model(), data()
    optimizer = torch.optim.AdamW(made.parameters())
    made(loader[0][0]).sum().backward()
    optimizer.step()
    before = digest_of(made, optimizer, loader)
    budget: dict[str, Any] = {"device": "cpu", "memory_budget": "4MiB", "strategies": NAMES}
    autofit.estimate(
        made, loader, loss_fn=nn.functional.cross_entropy, optimizer=optimizer, ranks=2, layout="full", **budget
    )
    assert digest_of(made, optimizer, loader) == before
    assert not distributed.is_initialized()


@pytest.mark.slow
def test_a_model_that_declares_a_plan_is_estimated_with_its_layers_divided() -> None:
    batches = [(torch.randint(WORDS, (BATCH, 3)), torch.randint(WORDS, (BATCH,))) for _ in range(2)]
    tensor = estimate(4, "tensor", model=Planned(), loader=batches)
    assert tensor.own.plan.values["layout"] == "tensor"
    assert peaks(tensor)["layout=tensor"] > 0
    assert "on each of 4 ranks (global batch 32)" in " ".join(str(tensor).split())
    refused = estimate(4).refused
    assert any(each.name == "layout=tensor" and "declares no plan" in each.reason for each in refused)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.tensor(1.0)), model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.scale * self.inner(x)
        return out


def test_a_layout_that_cannot_be_applied_is_refused_with_the_reason() -> None:
    with pytest.raises(autofit.SpaceError, match="the layout full cannot be applied to 2 ranks: the parameter scale"):
        estimate(2, "full", model=Scaled())
    compared = estimate(2, model=Scaled())
    assert "layout=full" in {each.name for each in compared.refused}
    assert set(peaks(compared)) >= {"layout=replicated", "layout=optimizer"}
    with pytest.raises(autofit.SpaceError, match="inference exchanges nothing between ranks"):
        estimate(2, mode="inference", loss_fn=None)


def test_a_model_that_is_divided_already_is_refused() -> None:
    with fake_ranks(2) as ranks:
        wrapped = nn.parallel.DistributedDataParallel(model(), process_group=ranks.group)
        with pytest.raises(autofit.UsageError, match="found a process group in this process"):
            estimate(2)
    with pytest.raises(autofit.SpaceError, match="the model is already divided among ranks by DistributedDataParallel"):
        estimate(2, model=wrapped)


def test_a_card_that_is_not_here() -> None:
    found = estimate(8, device="H100 SXM", memory_budget=None)
    assert found.environment.device_name == "NVIDIA H100 80GB HBM3"
    assert [row.name for row in found.rows] == ["layout=replicated", "layout=optimizer", "layout=full", "layout=hybrid"]
    assert all(row.largest is not None and not row.reason for row in found.rows)
    assert any("NCCL" in caveat for caveat in found.caveats)
    assert found.breakdown.reserved_bytes is not None
    assert "8 x NVIDIA H100" in render(found)
