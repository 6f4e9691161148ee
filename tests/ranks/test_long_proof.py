"""A long proof on two real ranks: one of them grows, fails or runs out of memory, and both say so."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import autofit
from autofit.doctor import long_proof
from autofit.probing.ranks import bench
from autofit.search.evidence import HELD
from autofit.workloads.step import Ranks
from scripts.bench.ranks.launching import launched
from tests.digests import digest_of

pytestmark = [pytest.mark.slow, pytest.mark.leaves("multiprocessing keeps a tracker of its resources")]
WIDTH = 16


class Keeping(nn.Module):
    """Keeps 64 KiB in each pass of a long proof, or runs out of memory in one of them."""

    def __init__(self, keeps: bool, fails: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
        self.keeps, self.fails, self.calls, self.history = keeps, fails, 0, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if LASTING:
            self.calls += 1
            if self.keeps:
                self.history.append(torch.ones(2**14))
            if self.fails and self.calls == 20:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (injected)")
        out: torch.Tensor = self.layers(x.mean(1))
        return out


class Texts(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of many lengths."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(index)
        return torch.randn(4 + index % 29, WIDTH, generator=drawn), torch.zeros(1)


def padded(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    rows, targets = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), torch.stack(targets)


LASTING = list[None]()
SHAPES = set[tuple[int, ...]]()


def lasting(*arguments: Any) -> str:
    """Does what the long proof does, and says to the models that it runs."""
    LASTING.append(None)
    step, batch = arguments[2], arguments[3]

    def noted() -> Any:
        made = batch()
        SHAPES.update(tuple(part[0].shape) for part in (made.parts if made is not None else ()))
        return made

    try:
        return str(LASTED(*arguments[:2], step, noted, *arguments[4:]))
    finally:
        LASTING.clear()


LASTED: Any = long_proof.lasted


def proven(ranks: Ranks, layout: str, kind: str, rank: int = 1) -> dict[str, Any]:
    long_proof.SAMPLE_S, bench.LEAST_S = 0.1, 5.0
    vars(long_proof)["lasted"] = lasting
    SHAPES.clear()
    torch.manual_seed(0)
    struck = kind if ranks.number == rank else ""
    model = Keeping(keeps=struck == "grows", fails=struck == "fails")
    loader = DataLoader(Texts(), batch_size=4, collate_fn=padded, shuffle=True)
    before = digest_of(model)
    fit = autofit.tune(
        model,
        loader,
        loss_fn=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        strategies=("layout",),
        pinned={"layout": layout},
        memory_budget="1GiB",
        time_budget=60.0,
        study=":memory:",
        progress=False,
        prove=2.0,
    )
    return {
        "text": fit.answer.long_proof,
        "caveats": list(fit.caveats),
        "same": digest_of(model) == before,
        "shapes": sorted(SHAPES),
    }


@pytest.mark.parametrize("layout", ["replicated", "full"])
def test_ranks_that_hold_say_so_and_run_batches_of_their_own(layout: str) -> None:
    first, second = launched(proven, layout, "")
    assert first["text"] == second["text"]
    assert first["text"].startswith(f"{HELD} for ")
    assert first["text"].endswith((" (rank 0, the most of 2)", " (rank 1, the most of 2)"))
    assert first["same"]
    assert second["same"]
    assert len(first["shapes"]) > 5
    assert first["shapes"] != second["shapes"]
    assert not any("long proof" in each for each in first["caveats"])


@pytest.mark.parametrize("rank", [0, 1])
def test_growth_on_any_rank_is_reported_and_its_cause_on_the_leader(rank: int) -> None:
    first, second = launched(proven, "replicated", "grows", rank)
    assert first["text"] == second["text"]
    assert first["text"].startswith(f"rank {rank}: live memory grows by ")
    assert ("held by `model.history[" in first["text"]) is (rank == 0)
    slope = float(first["text"].partition("grows by ")[2].partition(" KiB")[0])
    assert slope == pytest.approx(64, rel=0.05)
    assert first["caveats"][0] == f"the long proof: {first['text']}"
    assert first["same"]
    assert second["same"]


@pytest.mark.parametrize("layout", ["replicated", "full"])
def test_a_rank_that_runs_out_of_memory_in_the_middle_is_named(layout: str) -> None:
    first, second = launched(proven, layout, "fails")
    assert first["text"] == second["text"]
    assert first["text"].startswith("rank 1: failed in step 20, after ")
    assert "out of memory" in first["text"].lower()
    assert first["same"]
    assert second["same"]
