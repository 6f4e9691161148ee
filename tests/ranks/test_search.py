"""Searches on two real ranks, which communicate by gloo: one answer, whatever happens on one of them."""

import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.fit import Fit
from autofit.search.search import SearchInterrupted
from autofit.workloads.step import Ranks
from scripts.bench.ranks.chaos import Net, judged, outcomes
from scripts.bench.ranks.launching import launched
from tests.digests import digest_of

pytestmark = [pytest.mark.slow, pytest.mark.leaves("multiprocessing keeps a tracker of its resources")]
GIVEN: dict[str, Any] = {
    "loss_fn": nn.functional.cross_entropy,
    "strategies": ("layout", "batching"),
    "memory_budget": "1GiB",
    "time_budget": 60.0,
    "study": ":memory:",
    "progress": False,
}


def data(samples: int = 256, shuffle: bool = True) -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(samples, 16), torch.randint(4, (samples,))), 8, shuffle=shuffle)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_a_fault_on_one_rank_ends_alike_on_all() -> None:
    for seed, fault, said, text in outcomes([2, 3, 7, 10, 14], 2):
        assert judged(seed, fault, said) == "", f"seed {seed} {fault}: {said}\n{text}"


def trained(ranks: Ranks, layout: str) -> dict[str, Any]:
    """Searches with a layout, and trains an epoch under the plan."""
    model, loader = net(), data()
    before = digest_of(model)
    fit = autofit.tune(
        model, loader, optimizer=sgd, global_batch_size=32, pinned={"layout": layout, "micro_batch_size": 16}, **GIVEN
    )
    same = digest_of(model) == before
    step = fit.prepare(model, loader)
    samples = [int(each[1].shape[0]) for each in step.loader]
    orders = [next(iter(step.loader))[0][0, 0].item() for _ in range(2)]
    alike = fit.prepare(net(), data(shuffle=False), sgd)
    losses = [float(alike(batch)) for batch in alike.loader]
    alike.close()
    step.close()
    weights = torch.cat([parameter.detach().flatten() for parameter in alike.model.parameters()])
    found: list[Any] = [None] * ranks.count
    distributed.all_gather_object(found, weights.tolist())
    assert all(each == found[0] for each in found), "all ranks have the same weights after the step is closed"
    return {
        "plan": str(fit.plan),
        "layout": fit.plan.values["layout"],
        "ranks": fit.answer.environment.ranks,
        "text": str(fit.details()),
        "same": same,
        "samples": samples,
        "orders": orders,
        "losses": losses,
        "weights": weights.tolist(),
        "kind": type(model).__name__,
    }


def reference(plan_batch: int) -> list[float]:
    """Returns the weights after an epoch in one process, in the order of samples that two ranks have together."""
    model, given = net(), data(shuffle=False).dataset
    optimizer = sgd(model.parameters())
    for first in range(0, len(given), 2 * plan_batch):  # type: ignore[arg-type]
        part = [given[index] for index in range(first, first + 2 * plan_batch)]
        loss = nn.functional.cross_entropy(model(torch.stack([x for x, _ in part])), torch.stack([y for _, y in part]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


@pytest.mark.parametrize("layout", ["replicated", "optimizer", "full"])
def test_the_plan_is_the_same_on_all_ranks_and_trains_as_one_process_does(layout: str) -> None:
    first, second = launched(trained, layout)
    assert first["plan"] == second["plan"]
    assert (first["layout"], first["ranks"]) == (layout, 2)
    assert first["same"]
    assert second["same"]
    assert "2 x " in first["text"]
    assert sum(first["samples"]) == sum(second["samples"]) == 128, "each rank has half of the samples"
    assert first["orders"][0] != first["orders"][1], "each pass has another order"
    assert first["kind"] == "Net"
    expected = torch.tensor(reference(32 // 2))
    assert torch.allclose(torch.tensor(first["weights"]), expected, rtol=1e-4, atol=1e-5)


def refused(ranks: Ranks) -> list[str]:
    """Returns the errors of searches that no two ranks can make together."""
    other = net() if ranks.number == 0 else nn.Sequential(net(), nn.Linear(4, 4))
    fewer = data(256 if ranks.number == 0 else 128)
    asked: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (other, data(), {}),
        (net(), fewer, {}),
        (net(), data(), {"mode": "inference", "loss_fn": None}),
        (net(), data(), {"global_batch_size": 33}),
    ]
    found = []
    for model, loader, changes in asked:
        try:
            autofit.tune(model, loader, optimizer=sgd, **{**GIVEN, "strategies": None, **changes})
        except autofit.AutofitError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_ranks_that_differ_and_what_cannot_be_divided_are_refused_on_all_ranks() -> None:
    first, second = launched(refused)
    assert first == second
    model, batches, inference, share = first
    assert model.startswith("UsageError: found that rank 1 differs from rank 0: ")
    assert "batches: 16 (rank 0: 32); expected the same model" in batches
    assert inference.startswith("SpaceError: no layout can be applied to 2 ranks: inference exchanges nothing between")
    assert share.startswith("SpaceError: found a global batch of 33 for 2 ranks; expected a multiple of 2")


class Slow(Net):
    """Takes 5 ms longer for a pass on rank 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005 * distributed.get_rank())
        return super().forward(x)


def delayed(ranks: Ranks) -> list[str]:
    return list(autofit.tune(Slow(), data(), optimizer=sgd, **GIVEN).caveats)


def test_a_straggler_is_named() -> None:
    for caveats in launched(delayed):
        assert any(each.startswith("rank 1 takes ") and "every step waits for it" in each for each in caveats), caveats


def interrupted(ranks: Ranks) -> list[str]:
    """Interrupts all ranks after the first trial, as a launcher does."""
    processes: list[Any] = [0] * ranks.count
    distributed.all_gather_object(processes, os.getpid())

    def listen(event: Any) -> None:
        if event.kind == "trial" and ranks.number == 0:
            while processes:
                os.kill(processes.pop(), signal.SIGINT)  # its own comes last

    try:
        autofit.tune(net(), data(), optimizer=sgd, **{**GIVEN, "progress": listen})
    except SearchInterrupted as error:
        found = error.fit
        assert isinstance(found, Fit)
        return [type(error).__name__, str(found.plan)]
    return ["nothing"]


def test_an_interrupt_of_all_ranks_ends_with_the_answer_on_all() -> None:
    first, second = launched(interrupted)
    assert first == second
    assert first[0] == "SearchInterrupted"


def moved(ranks: Ranks, folder: str) -> list[str]:
    fit = autofit.tune(net(), data(), optimizer=sgd, eval_loader=data(), **GIVEN)
    if ranks.number == 0:
        fit.save(f"{folder}/plan.yaml")
    assert fit.evaluation is None
    return list(fit.caveats)


def test_a_plan_for_several_ranks_needs_as_many_and_evaluation_is_left_out(tmp_path: Any) -> None:
    for caveats in launched(moved, str(tmp_path)):
        assert any("the plan for evaluation was not searched" in each for each in caveats)
    fit = autofit.load(tmp_path / "plan.yaml")
    with pytest.raises(autofit.UsageError, match="the plan is for 2 ranks, and found a process group of 1; expected"):
        fit.prepare(net(), data(), sgd, loss_fn=nn.functional.cross_entropy)
