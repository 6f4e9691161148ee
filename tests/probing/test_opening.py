"""What is known of a workload before its survey: strategies, sizes, the global batch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.errors import (
    SpaceError,
    UsageError,
)
from autofit.core.trial import Purpose
from autofit.probing.opening import baseline_batch
from autofit.strategies import members
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import CPU, bench_of
from tests.workloads import gans


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpaceError) as error:
        bench_of(targets.make_mlp(), strategies=("batching", "magic"))
    assert "unknown strategy 'magic'. Expected some of " in str(error.value)
    assert "precision" in str(error.value)


def test_a_choice_of_no_strategy_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(UsageError) as error:
        bench_of(targets.make_mlp(), strategies=("precision",), without=("precision",))
    assert str(error.value).startswith("found no technique to search: of precision, precision is excluded. Expected at")
    assert str(error.value).endswith("Exclude fewer, or choose others.")
    assert error.value.exit_code == 2
    with pytest.raises(UsageError, match="no technique"):
        bench_of(targets.make_mlp(), without=tuple(member.name for member in members()))


def test_strategies_that_are_left_out_have_no_knob() -> None:
    space = bench_of(targets.make_mlp(), strategies=("batching",)).briefing.space
    assert space.knobs == ()
    assert set(space.baseline.values) == {"micro_batch_size", "accumulation_steps"}


def test_exact_numerics_have_no_precision_knob() -> None:
    class Capable(CPU):  # type: ignore[misc]  # a class that is looked up
        def capabilities(self) -> frozenset[str]:
            return frozenset({"bf16", "fp16"})

    space = bench_of(targets.make_mlp(), Capable(), numerics="exact").briefing.space
    assert "precision" not in {knob.name for knob in space.knobs}
    assert any("numerics='exact' keeps the arithmetic" in refusal.reason for refusal in space.refused)
    mixed = bench_of(targets.make_mlp(), Capable()).briefing.space
    assert "precision" in {knob.name for knob in mixed.knobs}


@pytest.mark.parametrize(
    ("loader_batch", "total", "expected"),
    [
        (8, None, (8, 1)),
        (8, 45, (5, 9)),
        (10, 45, (9, 5)),
        (8, 7, (7, 1)),
        (8, 13, (1, 13)),
        (64, 16, (16, 1)),
        (8, 24, (8, 3)),
    ],
)
def test_the_users_own_setting_keeps_the_global_batch(
    loader_batch: int, total: int | None, expected: tuple[int, int]
) -> None:
    assert baseline_batch(loader_batch, total, resizable=True) == expected


def test_batches_that_are_only_cut_keep_the_global_batch_exactly() -> None:
    ready = [(torch.randn(12, 3 + length, 8), torch.randint(4, (12, 3 + length))) for length in range(8)]
    workload = Workload(targets.mlp(), ready, step_fn=of_tokens, global_batch_size=20)
    bench = bench_of(workload)
    assert (bench.briefing.space.baseline.micro_batch_size, bench.briefing.space.sizes) == (4, (1, 2, 4))
    draw = source_of(ready).rebuild(4)
    assert [len(part[0]) for part, _ in zip(draw, range(24), strict=False)] == [4] * 24


def of_tokens(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def test_an_odd_global_batch_has_its_divisors_only() -> None:
    space = bench_of(targets.make_mlp(global_batch_size=45)).briefing.space
    assert space.sizes == (1, 3, 5, 9, 15, 45)
    assert (space.baseline.micro_batch_size, space.baseline.accumulation_steps) == (5, 9)
    assert space.global_batch_size == 45


def test_a_free_batch_is_not_accumulated() -> None:
    space = bench_of(targets.make_mlp(max_global_batch_size=64)).briefing.space
    assert space.global_batch_size is None
    assert space.sizes == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert space.baseline.global_batch_size == 8


def uncut(size: int) -> list[Any]:
    """Batches that hold a tensor which is not one row per sample."""
    return [(torch.randn(size, 8), torch.zeros(size, dtype=torch.long), torch.full((5,), float(at))) for at in range(3)]


def uncut_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_batches_that_cannot_be_cut_must_make_up_the_global_batch() -> None:
    with pytest.raises(SpaceError) as error:
        bench_of(Workload(targets.mlp(), uncut(6), step_fn=uncut_step, global_batch_size=16))
    assert "a global batch of 16 with a loader whose batches of 6 can be neither cut nor joined" in str(error.value)
    with bench_of(Workload(targets.mlp(), uncut(6), step_fn=uncut_step, global_batch_size=12)) as bench:
        assert bench.briefing.space.sizes == (6,)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF).measured


def test_inference_has_no_global_batch_to_keep() -> None:
    with bench_of(targets.make_mlp(mode="inference", global_batch_size=24)) as bench:
        space = bench.briefing.space
        assert space.global_batch_size is None
        assert space.baseline.accumulation_steps == 1
        outcome = bench.evaluate(space.baseline, Purpose.PROOF)
        assert outcome.measured, outcome.reason
        assert outcome.measurement is not None
        assert outcome.measurement.loss is None
        assert outcome.measurement.memory.static_bytes == sum(p.nbytes for p in bench.workload.model.parameters())


def test_the_batch_of_a_users_step_is_the_global_batch() -> None:
    assert baseline_batch(8, 24, resizable=True, whole=True) == (24, 1)
    assert baseline_batch(8, 8, resizable=False, joinable=False, whole=True) == (8, 1)
    assert baseline_batch(8, None, resizable=True, whole=True) == (8, 1)
    with pytest.raises(SpaceError, match="a global batch of 24 with a loader whose batches of 8 cannot be joined"):
        baseline_batch(8, 24, resizable=True, joinable=False, whole=True)


def test_a_users_step_is_searched_without_accumulation_and_says_so() -> None:
    briefing = bench_of(gans.workload(global_batch_size=24), strategies=("batching",)).briefing
    assert briefing.space.sizes == (24,)
    assert briefing.space.baseline.accumulation_steps == 1
    assert any("update_fn does the whole optimizer step of 24 samples" in text for text in briefing.caveats)
    assert [refusal.name for refusal in briefing.space.refused] == ["accumulation"]
