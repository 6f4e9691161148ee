"""Trained parameters that no step gives a gradient are named; those that are frozen or rarely used are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from autofit import tune
from autofit.core.outcome import Outcome
from autofit.core.trial import Purpose, RunTerms
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, evaluate


class Branches(nn.Module):
    """Two layers, of which `way` computes the output."""

    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.left, self.right, self.way = nn.Linear(8, 4), nn.Linear(8, 4), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self, x)


def left_alone(model: Branches, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model.left(x)
    return output


def right_detached(model: Branches, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model.left(x) + model.right(x).detach()
    return output


def right_checkpointed(model: Branches, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model.left(x) + checkpoint(model.right, x, use_reentrant=True)
    return output


def both(model: Branches, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model.left(x) + model.right(x)
    return output


def by_length(model: Branches, x: torch.Tensor) -> torch.Tensor:
    """Long rows, which the worst batch consists of, go left; the others go right."""
    rows = x.shape[1] // 8
    layer = model.left if rows > 3 else model.right
    output: torch.Tensor = layer(x[:, :8])
    return output


def proof(model: nn.Module, loader: Any = None, optimizer: Any = torch.optim.AdamW) -> Outcome:
    given = targets.vectors() if loader is None else loader
    return evaluate(Workload(model, given, optimizer=optimizer), Purpose.PROOF)


def said(outcome: Outcome) -> str:
    assert outcome.measurement is not None, outcome
    return outcome.measurement.without_gradient


@pytest.mark.parametrize("way", [left_alone, right_detached, right_checkpointed])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_parameters_that_get_no_gradient_are_counted_and_named(way: Callable[..., torch.Tensor]) -> None:
    assert said(proof(Branches(way))).startswith(
        "2 of 4 trained parameters (right.weight, right.bias) had no gradient in any of "
    )


def test_a_frozen_layer_and_one_that_the_optimizer_does_not_hold_are_not_named() -> None:
    frozen = Branches(left_alone)
    frozen.right.requires_grad_(False)
    assert said(proof(frozen)) == ""
    apart = Branches(left_alone)
    assert said(proof(apart, optimizer=torch.optim.AdamW(apart.left.parameters()))) == ""


def test_a_layer_that_only_other_batches_than_the_worst_use_is_not_named() -> None:
    samples = [(torch.randn(8 * rows), 0) for rows in (1, 2, 3, 9) * 16]

    def padded(rows: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True)
        return inputs, torch.tensor([y for _, y in rows])

    loader: Any = DataLoader(samples, batch_size=1, collate_fn=padded)  # type: ignore[arg-type]  # a list will do
    assert said(proof(Branches(by_length), loader)) == ""
    with LocalBench(Workload(Branches(by_length), loader), CPU(), PLENTY) as bench:
        found = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE, RunTerms(above=1e-9))
    assert found.measurement is not None
    assert found.measurement.proven
    assert said(found) == "", "a probe that goes on to its proof looks at other batches, too"


def test_a_model_whose_gradients_are_all_there_and_one_that_uses_them_up_itself_are_silent() -> None:
    assert said(proof(Branches(both))) == ""
    model = Branches(both)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_let_go)  # type: ignore[no-untyped-call]  # torch has no types here
    assert said(proof(model)) == ""


def _let_go(parameter: torch.Tensor) -> None:
    parameter.grad = None


def test_the_result_warns_once() -> None:
    fit = tune(
        Branches(right_detached), targets.vectors(), global_batch_size=4, study=":memory:", progress=False,
        strategies=("optimizer_implementation",), device="cpu", memory_budget="1GiB", time_budget=20,
    )  # fmt: skip
    told = [text for text in fit.caveats if "had no gradient" in text]
    assert len(told) == 1
    assert "2 of 4 trained parameters (right.weight, right.bias)" in told[0]
