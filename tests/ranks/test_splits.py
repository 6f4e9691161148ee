"""Trainings on real ranks, one of which runs out of memory: all run the step again, in smaller parts."""

import os
import random
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import RanksLost
from autofit.splitting import Splitting
from autofit.workloads.step import Ranks, Splits, StepBatch
from autofit.workloads.votes import Votes
from scripts.bench.ranks.launching import launched
from scripts.bench.ranks.splits import LAYOUTS, MOST_S, TEXT, WIDTH, Fault, compared, drawn, judged, made

pytestmark = [pytest.mark.leaves("multiprocessing keeps a tracker of its resources")]
FAULTS = {
    "forward": Fault(ranks=(1,)),
    "before anything was trained, on rank 0": Fault(ranks=(0,), step=0, block=0),
    "backward, with buckets and blocks on their way": Fault(ranks=(1,), place="backward", block=0),
    "first of three": Fault(ranks=(0,), place="backward", block=2),
    "last of three": Fault(ranks=(1,), place="backward", micro_batch=3, block=0),
    "on both": Fault(ranks=(0, 1), place="backward", block=3),
    "again, in the half": Fault(ranks=(1,), times=2),
    "other sizes": Fault(ranks=(0,), samples=(8, 1, 8, 8), place="backward"),
    "another error": Fault(ranks=(1,), place="backward", is_memory=False),
    "one sample": Fault(ranks=(0,), samples=(1, 8, 8, 8)),
}


def check(cases: list[tuple[str, int, Fault]], ranks: int = 2) -> None:
    for case, *said in zip(cases, *launched(compared, cases, ranks=ranks), strict=True):
        assert judged(case[2], said) == "", (case, said)


def parts_of(name: str) -> int:
    return 3 if "three" in name else 1


@pytest.mark.fault("F41", "F42")
def test_an_out_of_memory_on_one_rank_is_the_step_of_the_whole_micro_batch_on_all() -> None:
    names = ["backward, with buckets and blocks on their way", "another error"]
    check([(layout, parts_of(name), FAULTS[name]) for layout in ("replicated", "full") for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_so_it_is_wherever_it_strikes(layout: str) -> None:
    check([(layout, parts_of(name), fault) for name, fault in FAULTS.items()])


@pytest.mark.slow
def test_so_it_is_in_rows() -> None:
    cases = [("hybrid", parts_of(name), fault) for name, fault in FAULTS.items()]
    far = replace(FAULTS["last of three"], ranks=(1, 2))
    check([*cases, ("hybrid", 3, far)], ranks=4)


@pytest.mark.slow
def test_so_it_is_at_random() -> None:
    check([drawn(seed, 2) for seed in random.Random(0).sample(range(10_000), 12)])


def sizes_run(ranks: Ranks) -> Any:
    """Trains where rank 1 has no memory for more than 2 samples. Returns the sizes of its passes in each step."""
    step, model = made(ranks, LAYOUTS["full"])
    sizes, found, kept = list[int](), list[list[int]](), list[Splits]()

    def record(splits: Splits) -> str:
        kept.append(splits)
        return ""

    def small(module: nn.Module, inputs: Any) -> None:
        sizes.append(len(inputs[0]))
        if ranks.number == 1 and sizes[-1] > 2:
            raise torch.OutOfMemoryError(TEXT)

    assert isinstance(step.splitting, Splitting)
    step.splitting.record = record
    model.register_forward_pre_hook(small)
    for _ in range(3):
        step(StepBatch.of([[torch.randn(8, WIDTH), torch.zeros(8, dtype=torch.long)]]))
        found.append(list(sizes))
        sizes.clear()
    return found, step.splits.micro_batches, step.splits.largest_samples, len(kept)


@pytest.mark.slow
def test_sizes_that_have_failed_twice_are_cut_at_once_on_all_ranks() -> None:
    (other, count, largest, kept), (own, own_count, own_largest, own_kept) = launched(sizes_run)
    assert own == [[8, 4, 2, 2, 4, 2, 2, 2, 2], [8, 2, 2, 2, 2], [2, 2, 2, 2]]
    assert [each[-4:] for each in other] == [[2, 2, 2, 2]] * 3
    assert (count, largest) == (own_count, own_largest) == (9, 8)
    assert (kept > 0, own_kept) == (True, 0), "rank 0 keeps the record for all"


def told(ranks: Ranks, end: str, folder: str) -> None:
    """Writes what is said to a rank whose peer ends, and after how many seconds."""
    step, _ = made(ranks, LAYOUTS["replicated"])
    votes, began, text = Votes.of(ranks), monotonic(), ""
    if ranks.number == 1 and end == "death":
        Splitting._agreed = lambda *_: os._exit(0)  # type: ignore[method-assign]
    try:
        with votes.together():
            if ranks.number == 1 and end == "refusal":
                raise ValueError("cannot be split")
        step(StepBatch.of([[torch.randn(8, WIDTH), torch.zeros(8, dtype=torch.long)]]))
    except (RanksLost, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    Path(folder, f"said {ranks.number}").write_text(text if monotonic() - began < MOST_S else "late")


def test_a_rank_that_dies_while_all_vote_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="terminated"):
        launched(told, "death", str(tmp_path))
    assert (tmp_path / "said 0").read_text().startswith("RanksLost: found no vote of another rank (")


@pytest.mark.slow
def test_a_rank_that_refuses_is_named_on_the_others(tmp_path: Path) -> None:
    launched(told, "refusal", str(tmp_path))
    assert (tmp_path / "said 0").read_text().startswith("RanksLost: found an error on rank 1, which ends the step on")
    assert (tmp_path / "said 1").read_text() == "ValueError: cannot be split"
