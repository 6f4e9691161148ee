"""What techniques of the search would save, and what the loader does."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit.core.loading import Loading, LoadingTrial
from autofit.devices.cpu import Cpu
from autofit.doctor.findings.plans import AttentionScores, Loader, Logits, OptimizerPeak, Padding
from autofit.doctor.observation import Observation
from autofit.doctor.what_if import Change, WhatIf
from tests.doctor.cases import MIB, held_outputs, observed, of

WORDS = 4096


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(ids))
        return out


def test_the_logits_of_a_large_vocabulary_are_measured_as_the_search_would_avoid_them() -> None:
    torch.manual_seed(0)
    ids = torch.randint(WORDS, (8, 32))
    found = autofit.diagnose(Decoder(), [(ids, ids)])
    (logits,) = of(found, "logits")
    assert logits.size is not None
    assert logits.size.basis == "measured"
    one = ids.numel() * WORDS * 4
    assert logits.size.peak_bytes is not None
    assert one < logits.size.peak_bytes < 3 * one
    assert "linear_cross_entropy=chunked" in logits.confirmed


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observed(held_outputs(True))


def with_what_if(seen: Observation, saved_bytes: int = 0, knob: str = "", **more: Any) -> Observation:
    """Returns the observation with a bench on which one knob saves some bytes."""
    buffers: list[torch.Tensor] = []

    def run(size: int) -> None:
        buffers[:] = [torch.empty(size, dtype=torch.uint8)]
        buffers.clear()

    base = 64 * MIB
    bench = WhatIf(
        lambda: run(base),
        Cpu(),
        list,
        lambda name, value: (
            Change(f"{name}={value}", opened=lambda: nullcontext(lambda: run(base - saved_bytes)))
            if name == knob
            else None
        ),
        **more,
    )
    return replace(seen, what_if=bench)


@pytest.mark.parametrize("kind", [AttentionScores, Logits])
def test_a_plan_is_a_finding_if_it_saves_memory(seen: Observation, kind: type[Any]) -> None:
    (found,) = kind().find(with_what_if(seen, 8 * MIB, kind.knob))
    assert found.size.peak_bytes == 8 * MIB
    assert list(kind().find(with_what_if(seen, 0, kind.knob))) == []
    assert list(kind().find(with_what_if(seen, 8 * MIB, "another"))) == []


def test_the_update_is_looked_at_only_if_the_peak_is_there(seen: Observation) -> None:
    assert not seen.views.use.peak.name.endswith("optimizer")
    assert list(OptimizerPeak().find(with_what_if(seen, 8 * MIB, OptimizerPeak.knob))) == []


@pytest.mark.parametrize(("share", "count"), [(0.4, 1), (0.01, 0)])
def test_padding_is_a_finding_from_five_percent_on(seen: Observation, share: float, count: int) -> None:
    found = list(Padding().find(with_what_if(seen, padding=lambda: share)))
    assert len(found) == count
    assert all("40%" in each.what for each in found)


def test_padding_of_ready_batches_is_unknown(seen: Observation) -> None:
    assert "cannot be batched anew" in Padding().unchecked(with_what_if(seen, padding=lambda: None))


def test_a_loader_that_needs_workers_is_found_with_both_speeds(seen: Observation) -> None:
    trials = (LoadingTrial(workers=0, samples_per_s=100.0), LoadingTrial(workers=2, samples_per_s=1000.0))
    loading = Loading(needed_per_s=400.0, trials=trials, workers=2, prefetch_factor=2)
    (found,) = Loader().find(with_what_if(seen, loading=lambda: loading))
    assert "400 samples/s instead of 80" in found.what
    assert "num_workers=2" in found.remedy
    assert list(Loader().find(with_what_if(seen))) == []


def test_a_slow_data_set_and_padded_batches_are_measured() -> None:
    texts = [torch.randint(1, 50, (length,)) for length in (4, 40) * 40]

    def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = model(batch["input_ids"]).mean()
        return out

    loader: DataLoader[Any] = DataLoader(texts, batch_size=8, collate_fn=padded, shuffle=True)  # type: ignore[arg-type]
    (found,) = of(autofit.diagnose(nn.Embedding(50, 8), loader, step_fn=loss), "padding")
    assert "are padding" in found.what
