"""Searches on two real ranks, which communicate by gloo: one answer, whatever happens on one of them."""

import copy
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import autofit
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.guard.object_state import fingerprint
from autofit.probing.ranks.bench import SAME_SAMPLES, RankBench
from autofit.probing.ranks.launch import Launch
from autofit.search.search import SearchInterrupted
from autofit.torch_internals import FakeTensor
from autofit.workloads.step import Ranks
from scripts.bench.memory.ranks import LENGTH, WORDS, qwen3
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


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """Returns an optimizer that would also move parameters whose gradient is zero."""
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5)


@pytest.mark.fault("F41", "F42")
def test_a_fault_on_one_rank_ends_alike_on_all() -> None:
    for seed, fault, said, text in outcomes([2, 3, 7, 10, 14], 2):
        assert judged(seed, fault, said) == "", f"seed {seed} {fault}: {said}\n{text}"


def out_of_memory(rank: int, calls: list[Any], *_: Any) -> None:
    """Fails in the third pass of rank 1."""
    calls.append(rank)
    if rank == 1 and len(calls) == 3:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def trained(ranks: Ranks, layout: str, compiled: str = "") -> dict[str, Any]:
    """Searches with a layout, and trains an epoch under the plan."""
    pinned: dict[str, Any] = {"layout": layout, "micro_batch_size": 16, **({"compile": compiled} if compiled else {})}
    if layout == "full":
        pinned["gather_precision"] = "fp32"
    techniques = ("layout", "batching", "compilation")
    given = {**GIVEN, "strategies": techniques, "time_budget": 240.0} if compiled else GIVEN
    model, loader = net(), data()
    before = digest_of(model)
    fit = autofit.tune(model, loader, optimizer=sgd, global_batch_size=32, pinned=pinned, **given)
    same = digest_of(model) == before
    step = fit.prepare(model, loader)
    samples = [int(each[1].shape[0]) for each in step.loader]
    orders = [next(iter(step.loader))[0][0, 0].item() for _ in range(2)]
    tried = net()
    alike = fit.prepare(tried, data(shuffle=False), sgd, on_oom="split")
    hook = tried.register_forward_hook(partial(out_of_memory, ranks.number, []))
    losses = [float(alike(batch)) for batch in alike.loader]
    hook.remove()
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
        "splits": alike.splits.micro_batches,
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
    assert (first["splits"], second["splits"]) == (1, 1)
    assert first["same"]
    assert second["same"]
    assert "2 x " in first["text"]
    assert sum(first["samples"]) == sum(second["samples"]) == 128, "each rank has half of the samples"
    assert first["orders"][0] != first["orders"][1], "each pass has another order"
    assert first["kind"] == "Net"
    expected = torch.tensor(reference(32 // 2))
    assert torch.allclose(torch.tensor(first["weights"]), expected, rtol=1e-4, atol=1e-5)


def texts() -> DataLoader[Any]:
    tokens = torch.randint(1, WORDS, (64, LENGTH), generator=torch.Generator().manual_seed(1))
    return DataLoader([{"input_ids": each, "labels": each.clone()} for each in tokens], 4)  # type: ignore[arg-type]


def by_a_plan(ranks: Ranks) -> dict[str, Any]:
    """Searches within a budget in which only divided layers fit, and trains under the plan and as replicated."""
    torch.manual_seed(0)
    model, before = qwen3(), qwen3()
    given = {**GIVEN, "loss_fn": None, "memory_budget": "18MiB", "pinned": {"micro_batch_size": 8}}
    digest = digest_of(model)
    fit = autofit.tune(model, texts(), optimizer=sgd, global_batch_size=16, **given)
    same = digest_of(model) == digest
    weights = []
    for layout in ("tensor", "replicated"):
        plan = fit.plan.replace(layout=layout)
        one = replace(fit, answer=fit.answer.model_copy(update={"plan": plan}))
        trained = copy.deepcopy(before)
        with one.prepare(trained, texts(), sgd) as step:
            losses = [float(step(batch)) for batch in step.loader]
        weights.append(torch.cat([each.detach().flatten() for each in trained.parameters()]))
    moved = weights[1] - torch.cat([each.detach().flatten() for each in before.parameters()])
    return {
        "plan": str(fit.plan),
        "caveats": fit.caveats,
        "same": same,
        "steps": len(losses),
        "weights": fingerprint(weights[0]),
        "distance": float((weights[0] - weights[1]).norm() / moved.norm()),
    }


def test_layers_divided_by_a_plan_are_the_answer_where_nothing_else_fits() -> None:
    first, second = launched(by_a_plan)
    assert first["plan"] == second["plan"]
    assert "layout=tensor" in first["plan"]
    assert not any("compared" in each or "differs" in each for each in first["caveats"])
    assert first["same"]
    assert second["same"]
    assert first["steps"] == 4
    assert first["weights"] == second["weights"]
    assert first["distance"] <= 1e-4


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("layout", ["replicated", "full"])
def test_compiled_code_trains_as_one_process_does(layout: str) -> None:
    first, second = launched(trained, layout, "default")
    assert first["plan"] == second["plan"]
    assert "compile=default" in first["plan"]
    assert first["same"]
    assert second["same"]
    assert first["weights"] == second["weights"]
    expected = torch.tensor(reference(32 // 2))
    assert torch.allclose(torch.tensor(first["weights"]), expected, rtol=1e-4, atol=1e-5)


def gathered(ranks: Ranks) -> list[dict[str, Any]]:
    """Searches with weights that are gathered in bfloat16, without and with autocast, and trains under each plan."""
    names = ("layout", "batching", "precision")
    found = []
    for precision in ("fp32", "bf16"):
        pinned = {"layout": "full", "gather_precision": "bf16", "precision": precision, "micro_batch_size": 8}
        model, loader = net(), data(shuffle=False)
        before = digest_of(model)
        fit = autofit.tune(model, loader, optimizer=sgd, pinned=pinned, **{**GIVEN, "strategies": names})
        same = digest_of(model) == before
        with fit.prepare(model, loader, sgd) as step:
            losses = [float(step(batch)) for batch in step.loader]
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        trained = weights.tolist() if weights.dtype is torch.float32 else []
        values = {name: fit.plan.values.get(name, "fp32") for name in pinned}
        found.append({"values": values == pinned, "same": same, "losses": losses, "weights": trained})
    return found


def test_a_plan_that_gathers_in_bf16_passes_the_check_and_trains_close_to_one_process() -> None:
    first, second = launched(gathered)
    expected = torch.tensor(reference(8))
    for mine, theirs in zip(first, second, strict=True):
        assert mine["values"]
        assert mine["same"]
        assert theirs["same"]
        assert mine["weights"] == theirs["weights"]
        assert torch.allclose(torch.tensor(mine["weights"]), expected, atol=0.02)
        assert not torch.equal(torch.tensor(mine["weights"]), expected)


def apart(ranks: Ranks) -> dict[str, Any]:
    """Searches with gradients that are exchanged once per step, and trains under the plan."""
    pinned: dict[str, Any] = {
        "layout": "full",
        "gather_precision": "fp32",
        "sync_each_batch": False,
        "micro_batch_size": 4,
    }
    model, loader, compared = net(), data(shuffle=False), list[Plan]()
    compare = RankBench.compare

    def noted(bench: Any, number: int, plan: Plan, limit_s: float) -> Any:
        compared.append(plan)
        return compare(bench, number, plan, limit_s)

    before = digest_of(model)
    with patch.object(RankBench, "compare", noted):
        fit = autofit.tune(model, loader, optimizer=sgd, global_batch_size=32, pinned=pinned, **GIVEN)
    same = digest_of(model) == before
    with fit.prepare(model, loader, sgd) as step:
        for batch in step.loader:
            step(batch)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    steps = {plan.accumulation_steps for plan in compared if plan.values.get("sync_each_batch") is False}
    return {"plan": fit.plan.values, "same": same, "weights": weights, "steps": [*steps], "caveats": fit.caveats}


def test_a_plan_that_exchanges_gradients_once_per_step_is_compared_and_trains_as_one_process_does() -> None:
    for each in launched(apart):
        values = each["plan"]
        assert (values["layout"], values["accumulation_steps"], values["sync_each_batch"]) == ("full", 4, False)
        assert each["same"]
        assert each["steps"] == [2]
        assert not any("sync_each_batch" in caveat for caveat in each["caveats"])
        assert torch.allclose(torch.tensor(each["weights"]), torch.tensor(reference(16)), rtol=1e-4, atol=1e-5)


def refused(ranks: Ranks) -> list[str]:
    """Returns the errors of searches that no two ranks can make together."""
    sharded: Any = fully_shard(net())
    other = net() if ranks.number == 0 else nn.Sequential(net(), nn.Linear(4, 4))
    fewer = data(256 if ranks.number == 0 else 128)
    asked: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (other, data(), {}),
        (net(), fewer, {}),
        (net(), data(), {"mode": "inference", "loss_fn": None}),
        (sharded, data(), {}),
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
    model, batches, inference, sharded, share = first
    assert model.startswith("UsageError: found that rank 1 differs from rank 0: ")
    assert "batches: 16 (rank 0: 32); expected the same model" in batches
    assert inference.startswith("SpaceError: no layout can be applied to 2 ranks: inference exchanges nothing between")
    assert sharded.startswith("SpaceError: found that the model is already divided among ranks by FSDPModule, on a pro")
    assert "pass the model before it is sharded" in sharded
    assert share.startswith("SpaceError: found a global batch of 33 for 2 ranks; expected a multiple of 2")


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """Trains two steps on samples of this rank, and returns the gradients of each."""
    torch.manual_seed(2 + distributed.get_rank())
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,)))
        loss.backward()  # type: ignore[no-untyped-call]
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]).tolist())
        optimizer.step()
    return found


def wrapped(ranks: Ranks, setting: str) -> dict[str, Any]:
    """Tunes a model in a wrapper, and goes on to train with the wrapper, as without the search."""
    trained: list[Any] = []
    for search in (False, True):
        model, loader = net(), data()
        wrapper = DistributedDataParallel(model, **{setting: True})  # type: ignore[arg-type]
        optimizer = sgd(wrapper.parameters())
        wrapper(torch.randn(8, 16))  # without a backward pass, for which the wrapper waits from then on
        if setting != "static_graph":  # which notes its graph in the first step
            steps(wrapper, optimizer)
        if search:
            before, own = digest_of(model, optimizer, loader), [(each, each.grad) for each in model.parameters()]
            fit = autofit.tune(wrapper, loader, optimizer=optimizer, **GIVEN)
            same = digest_of(model, optimizer, loader) == before
            same &= all(x is y and x.grad is z for x, (y, z) in zip(wrapper.parameters(), own, strict=True))
        trained.append(steps(wrapper, optimizer))
    step = fit.prepare(wrapper, data(), optimizer)
    losses = [float(step(batch)) for batch in step.loader]
    step.close()
    given = {**GIVEN, "loss_fn": None, "step_fn": lambda model, batch: wrapper(batch[0]).sum()}
    with pytest.raises(autofit.UserCodeError, match="the step calls the DistributedDataParallel that was given"):
        autofit.tune(wrapper, data(), optimizer=optimizer, **given)
    return {
        "same": same and "forward" not in vars(wrapper),
        "alike": trained[0] == trained[1],
        "gradients": trained[1],
        "baseline": fit.baseline.plan.values["layout"],
        "caveats": list(fit.caveats),
        "finite": bool(torch.tensor(losses).isfinite().all()),
    }


@pytest.mark.parametrize("setting", ["gradient_as_bucket_view", "find_unused_parameters", "static_graph"])
def test_a_wrapped_model_is_tuned_inside_and_the_wrapper_goes_on_as_before(setting: str) -> None:
    first, second = launched(wrapped, setting)
    assert first["gradients"] == second["gradients"]
    for each in (first, second):
        assert each["same"]
        assert each["alike"]
        assert each["finite"]
        assert each["baseline"] == "replicated"
        assert any("the model inside your DistributedDataParallel was tuned" in caveat for caveat in each["caveats"])


class Spare(Net):
    """Has a layer that no step uses, and one that steps of the second kind of sample use alone."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found + self.other(found) if x[0, 0] > 0 else found


def two_kinds() -> tuple[Spare, TensorDataset]:
    """Returns a model and samples. In the second step all those of rank 0 are of one kind, those of rank 1 of another.

    Ranks take samples in turn.
    """
    torch.manual_seed(0)
    model, rows = Spare(), torch.randn(64, 16)
    rows[:, 0] = 1.0
    rows[17:32:2, 0] = -1.0
    return model, TensorDataset(rows, torch.randint(4, (64,)))


def spared(ranks: Ranks, layout: str) -> dict[str, Any]:
    model, rows = two_kinds()
    loader, pinned = DataLoader(rows, 8), dict[str, Any](layout=layout, micro_batch_size=8)
    fit = autofit.tune(model, loader, optimizer=adamw, pinned=pinned, numerics="exact", **GIVEN)
    with fit.prepare(model, loader) as step:
        for batch in step.loader:
            step(batch)
    weights = {name: each.detach().flatten().tolist() for name, each in model.named_parameters()}
    return {"looks": fit.plan.values.get("find_unused_parameters"), "weights": weights, "caveats": list(fit.caveats)}


@pytest.mark.parametrize("layout", ["replicated", "optimizer", "full"])
def test_parameters_that_some_steps_leave_out_train_as_in_one_process(layout: str) -> None:
    first, second = launched(spared, layout)
    assert (first["looks"], second["looks"]) == (True, True)
    assert first["weights"] == second["weights"]
    if layout != "full":  # where gradients that are missing are zeros until the update
        assert any("(spare.weight, spare.bias) had no gradient" in each for each in first["caveats"]), first["caveats"]
    model, samples = two_kinds()
    (rows, labels), optimizer = samples.tensors, adamw(model.parameters())
    for begin in range(0, 64, 16):
        for part in (slice(begin, begin + 16, 2), slice(begin + 1, begin + 16, 2)):
            (nn.functional.cross_entropy(model(rows[part]), labels[part]) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        assert first["weights"][name] == pytest.approx(parameter.detach().flatten().tolist(), rel=1e-4, abs=1e-6)


def kept(optimizer: torch.optim.Optimizer) -> float:
    """Returns the largest momentum of all parameters."""
    parameters = optimizer.param_groups[0]["params"]
    return max(float(optimizer.state[each]["momentum_buffer"].abs().max()) for each in parameters)


def left_to_itself(ranks: Ranks, layout: str) -> dict[str, Any]:
    """Tunes ranks that begin with different weights. Trains with a scheduler, and with loaders of different lengths."""
    torch.manual_seed(ranks.number)
    model, given = Net(), data(shuffle=False)
    own = copy.deepcopy(model.state_dict())
    optimizer = sgd(model.parameters())
    optimizer.state.update({each: {"momentum_buffer": torch.zeros_like(each)} for each in model.parameters()})
    terms = {"pinned": {"layout": layout, "micro_batch_size": 8}, "numerics": "exact", **GIVEN}
    fit = autofit.tune(model, given, optimizer=optimizer, **terms)
    same = all(torch.equal(value, own[name]) for name, value in model.state_dict().items()) and kept(optimizer) == 0
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    torch.manual_seed(0)
    rows = TensorDataset(*given.dataset.tensors)  # type: ignore[attr-defined]
    part: Any = torch.utils.data.Subset(rows, range(0, 40 + 9 * ranks.number))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with fit.prepare(model, DataLoader(part, 8, sampler=range(len(part))), optimizer, scheduler=scheduler) as step:
            steps = sum(1 for batch in step.loader if step(batch) is not None)
            rates = [group["lr"] for group in (step.optimizer or optimizer).param_groups]
    same = same and kept(optimizer) > 0
    return {
        "plan": str(fit.plan), "same": same, "steps": steps, "rates": rates, "began": own["head.weight"].tolist(),
        "weights": [each.detach().flatten().tolist() for each in model.parameters()],
        "said": [str(each.message) for each in said if "shortest" in str(each.message)],
        "early": any("lr_scheduler" in str(each.message) for each in said),
        "usage": str(fit).partition("How to use it")[2],
    }  # fmt: skip


@pytest.mark.parametrize("layout", ["replicated", "optimizer", "full"])
def test_ranks_with_other_weights_and_other_numbers_of_batches_train_alike(layout: str) -> None:
    first, second = launched(left_to_itself, layout)
    assert first["began"] != second["began"]
    assert first["plan"] == second["plan"]
    assert f"layout={layout}" in first["plan"]
    assert first["same"]
    assert second["same"], "a search puts back the weights of each rank, and the optimizer's state"
    assert (first["steps"], second["steps"]) == (5, 5)
    assert (len(first["said"]), len(second["said"])) == (0, 1)
    assert not first["early"], "a scheduler sees that updates are made"
    assert first["weights"] == second["weights"]
    assert "fit.prepare(model, loader, optimizer)" in first["usage"], "also where the plan is the baseline"
    assert first["rates"] == second["rates"] == [pytest.approx(0.1 * 0.5**5)]
    torch.manual_seed(0)
    model = Net()  # that of rank 0
    optimizer, tensors = sgd(model.parameters()), data(shuffle=False).dataset.tensors  # type: ignore[attr-defined]
    for number in range(5):
        inputs, labels = (each[8 * number : 8 * number + 8] for each in tensors)
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] *= 0.5
    for found, expected in zip(first["weights"], model.parameters(), strict=True):
        assert found == pytest.approx(expected.detach().flatten().tolist(), rel=1e-4, abs=1e-6)


class Dropping(Net):
    """Leaves a layer out in most passes, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.passes = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, self.passes = super().forward(x), self.passes + 1
        return self.other(found) if self.passes % 3 == 1 or isinstance(x, FakeTensor) else found


def dropping(ranks: Ranks, pinned: dict[str, Any]) -> str:
    try:
        return str(autofit.tune(Dropping(), data(), optimizer=sgd, pinned=pinned, **GIVEN).plan)
    except autofit.UserCodeError as error:
        return str(error)


def test_a_model_that_drops_layers_at_random_is_told_what_to_pin() -> None:
    first, second = launched(dropping, {"layout": "replicated"})
    assert first == second
    assert "left trained parameters without a gradient" in first
    assert "pin find_unused_parameters=True" in first
    first, second = launched(dropping, {"layout": "replicated", "find_unused_parameters": True})
    assert first == second
    assert "find_unused_parameters=True" in first
    assert "left trained" not in first


class Together(Net):
    """Normalizes by the statistics of the samples of all ranks, as `SyncBatchNorm` does on a GPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        mean = found.detach().mean(0)
        distributed.all_reduce(mean)
        return found - mean / distributed.get_world_size()


def contrast(model: nn.Module, batch: Any) -> torch.Tensor:
    """Returns a loss whose negatives are the samples of all ranks, and averages it over ranks to show it."""
    own = nn.functional.normalize(model(batch[0]))
    everyone = [torch.zeros_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, own.detach())
    everyone[distributed.get_rank()] = own
    places = distributed.get_rank() * len(own) + torch.arange(len(own))
    loss = nn.functional.cross_entropy(own @ torch.cat(everyone).T, places)
    shown = loss.detach().clone()
    distributed.all_reduce(shown)
    return loss


def contrasted(ranks: Ranks, layout: str) -> dict[str, Any]:
    """Trains an epoch whose steps communicate, under a plan and by hand."""
    torch.manual_seed(0)
    model = Together()
    by_hand = DistributedDataParallel(copy.deepcopy(model))
    pinned = {"layout": layout, **({"gather_precision": "fp32"} if layout == "full" else {})}
    given = {**GIVEN, "loss_fn": None, "step_fn": contrast, "pinned": pinned}
    before = distributed.group.WORLD
    fit = autofit.tune(model, data(250), optimizer=sgd, **given)  # with an incomplete last batch
    same = distributed.group.WORLD is before
    step = fit.prepare(model, data(250, shuffle=False), sgd)
    optimizer, moved = sgd(by_hand.parameters()), []
    for batch in step.loader:
        contrast(by_hand, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        moved.append(float(step(batch)))
    step.close()
    pairs = zip(model.parameters(), by_hand.parameters(), strict=True)
    return {
        "plan": str(fit.plan),
        "same": same,
        "alike": all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs),
        "moved": abs(moved[0] - moved[-1]) > 1e-3,
    }


@pytest.mark.parametrize("layout", ["replicated", "full"])
def test_a_step_that_communicates_is_searched_and_trains_as_by_hand(layout: str) -> None:
    first, second = launched(contrasted, layout)
    assert first == second
    assert first["same"]
    assert first["alike"]
    assert first["moved"]
    assert "find_unused_parameters=True" not in first["plan"]


def named(ranks: Ranks) -> list[str]:
    group = distributed.new_group()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0]).sum()
        distributed.all_reduce(loss.detach().clone(), group=group)
        return loss

    try:
        autofit.tune(net(), data(), optimizer=sgd, **{**GIVEN, "loss_fn": None, "step_fn": step})
    except autofit.UsageError as error:
        distributed.all_reduce(torch.ones(1), group=group)
        return [str(error)]
    return []


def test_a_step_that_names_its_process_group_is_refused_and_the_group_works_afterwards() -> None:
    first, second = launched(named)
    assert first == second
    assert "on a process group that it names" in first[0]


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


class Failing(TensorDataset):
    """Fails on rank 1 while gradients are compared."""

    armed = False

    def __getitem__(self, index: int) -> Any:
        if Failing.armed:
            raise KeyError("no such sample")
        return super().__getitem__(index)  # type: ignore[no-untyped-call]


def uncompared(ranks: Ranks) -> dict[str, Any]:
    compare, given = RankBench.compare, data().dataset

    def armed(bench: Any, *arguments: Any) -> Any:
        Failing.armed = ranks.number == 1
        try:
            return compare(bench, *arguments)
        finally:
            Failing.armed = False

    assert isinstance(given, TensorDataset)
    loader, began = DataLoader(Failing(*given.tensors), 8), time.monotonic()
    with patch.object(RankBench, "compare", armed):
        fit = autofit.tune(net(), loader, optimizer=sgd, pinned={"layout": "optimizer"}, **GIVEN)
    return {"plan": str(fit.plan), "caveats": list(fit.caveats), "took_s": time.monotonic() - began}


def test_a_rank_that_cannot_make_the_batch_of_a_comparison_keeps_no_other_waiting() -> None:
    first, second = launched(uncompared)
    assert first["plan"] == second["plan"]
    assert any("rank 1 alone" in caveat and "no such sample" in caveat for caveat in first["caveats"]), first
    assert first["took_s"] < 60.0


class Stuck(Net):
    """Never ends a pass with other batches than the user's on rank 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while len(x) != 8 and distributed.get_rank() == 1 and not isinstance(x, FakeTensor):
            time.sleep(1.0)
        return super().forward(x)


def stuck(ranks: Ranks) -> dict[str, Any]:
    began, given = time.monotonic(), {**GIVEN, "time_budget": 15.0}
    handler = signal.getsignal(signal.SIGRTMAX)
    fit = autofit.tune(Stuck(), data(), optimizer=sgd, global_batch_size=32, **given)
    assert signal.getsignal(signal.SIGRTMAX) == handler
    return {"plan": str(fit.plan), "seconds": time.monotonic() - began}


def test_a_follower_that_hangs_in_a_rehearsal_costs_no_more_than_the_budget() -> None:
    first, second = launched(stuck)
    assert first["plan"] == second["plan"]
    assert "micro_batch_size=8 " in first["plan"]
    assert max(first["seconds"], second["seconds"]) < 25.0


class Stream(IterableDataset[Any]):
    def __init__(self, first: int) -> None:
        self.samples = [(torch.full((16,), each / 128), each % 4) for each in range(first, first + 64)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def streamed(ranks: Ranks, apart: bool) -> list[list[str]]:
    """Searches with a stream, and with a list of batches, which are the same on all ranks or `apart`."""
    first = 64 * ranks.number if apart else 0
    stream = DataLoader(Stream(first), batch_size=8)
    given = {**GIVEN, "pinned": {"layout": "replicated"}, "strategies": ("layout",)}
    return [list(autofit.tune(net(), loader, optimizer=sgd, **given).caveats) for loader in (stream, list(stream))]


@pytest.mark.parametrize("apart", [True, False])
def test_ranks_whose_loaders_make_the_same_samples_are_warned(apart: bool) -> None:
    for caveats in launched(streamed, apart)[0]:
        assert (SAME_SAMPLES in caveats) is not apart


class Connected(Net):
    """Takes 20 ms longer for a pass while ranks are connected, as if they exchanged something."""

    connected = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 * Connected.connected)
        return super().forward(x)


def exchanging(ranks: Ranks) -> list[str]:
    connect = Launch.group

    @contextmanager
    def connected(launch: Launch, limit_s: float, *, in_rows: bool) -> Iterator[Ranks]:
        with connect(launch, limit_s, in_rows=in_rows) as group:
            Connected.connected = True
            try:
                yield group
            finally:
                Connected.connected = False

    with patch.object(Launch, "group", connected):
        return list(autofit.tune(Connected(), data(), optimizer=sgd, pinned={"layout": "replicated"}, **GIVEN).caveats)


def test_the_share_of_communication_in_a_step_is_said() -> None:
    for caveats in launched(exchanging):
        assert any(each.startswith("communication between ranks, and waiting for each other") for each in caveats)


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
    with pytest.raises(autofit.UsageError, match="the plan is for 2 ranks, and found no process group; expected"):
        fit.prepare(net(), data(), sgd, loss_fn=nn.functional.cross_entropy)
