"""The guard names every kind of change and puts it back (fault matrix F26 to F30)."""

import copy
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import RestoreError
from autofit.core.uninterrupted import uninterrupted
from autofit.guard import Guard
from autofit.guard import guard as guard_module
from tests.digests import digest_in
from tests.guard.world import (
    MUTATORS,
    Net,
    Recorder,
    World,
)
from tests.workloads import gans


@pytest.mark.parametrize("kind", MUTATORS)
@pytest.mark.fault("F26")
def test_each_kind_of_change_is_named_and_put_back(kind: str) -> None:
    name, mutate = MUTATORS[kind]
    world = World()
    guard = world.guard()
    witness, digest = world.witness(), digest_in(guard)
    assert guard.differences() == []

    mutate(world)

    assert [found for found in guard.differences() if found.startswith(name)], guard.differences()
    guard.restore()
    assert guard.differences() == []
    assert world.witness() == witness
    assert digest_in(guard) == digest


def test_the_run_goes_on_as_if_nothing_had_happened() -> None:
    undisturbed = World()
    undisturbed.step()
    undisturbed.train(3)
    expected = undisturbed.witness()

    probed = World()
    guard = probed.guard()
    for _ in range(2):
        probed.harm()
        guard.restore()
    probed.step()
    probed.train(3)
    assert probed.witness() == expected


def test_without_the_guard_the_same_run_differs() -> None:
    undisturbed, probed = World(), World()
    probed.harm()
    for world in (undisturbed, probed):
        world.optimizer.zero_grad()
        world.model.load_state_dict(undisturbed.model.state_dict())
        world.train(1)
    assert probed.witness() != undisturbed.witness()


@pytest.mark.fault("F27")
def test_fp32_moments_of_bf16_parameters_keep_their_type_and_bits() -> None:
    weight = nn.Parameter(torch.randn(4).to(torch.bfloat16))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.AdamW(model.parameters())
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    moment = optimizer.state[weight]["exp_avg"] = torch.randn(4)
    expected = moment.clone()

    with Guard(model, optimizer):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert optimizer.state[weight]["exp_avg"].dtype == torch.bfloat16
    assert optimizer.state[weight]["exp_avg"] is moment
    assert moment.dtype == torch.float32
    assert torch.equal(moment, expected)


@pytest.mark.fault("F03", "F26")
def test_optimizer_state_that_a_probe_created_is_removed() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer) as guard:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert "optimizer.state[0]" in guard.differences()
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("inside", ["nothing", "optimizer step"])
@pytest.mark.fault("F28")
def test_a_graph_that_the_user_holds_still_runs_backward(inside: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.randn(2, 3)
    (model(x) ** 2).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.zero_grad()
    loss = (model(x) ** 2).sum()

    with Guard(model, optimizer) as guard:
        guard.restore()
        if inside == "optimizer step":
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
    loss.backward()
    pairs = zip(model.parameters(), expected, strict=True)
    assert all(p.grad is not None and torch.equal(p.grad, g) for p, g in pairs)


def test_casts_of_a_probes_weights_do_not_outlive_it() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        with Guard(model):
            model.weight.data.zero_()
            model(x)
        assert torch.equal(model(x), expected)


def test_random_streams_go_on_where_they_were() -> None:
    def draw() -> tuple[Any, ...]:
        return random.random(), float(np.random.rand()), torch.rand(2).tolist(), random.gauss(0, 1)

    model = nn.Linear(1, 1)
    draw()
    with Guard(model):
        expected = draw()
    with Guard(model):
        draw()
        draw()
    assert draw() == expected


# ---- exits


@pytest.mark.parametrize("error", [ValueError("user"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.fault("F26")
def test_every_exit_restores_and_lets_the_error_through(error: BaseException) -> None:
    world = World()
    witness = world.witness()

    def tune() -> None:
        with world.guard():
            world.harm()
            raise error

    with pytest.raises(type(error)) as caught:
        tune()
    assert caught.value is error
    assert world.witness() == witness


def test_what_cannot_be_put_back_is_named_and_chained() -> None:
    batches = DataLoader(TensorDataset(torch.zeros(2)))
    iterator = batches._iterator = iter(batches)
    error = ValueError("in flight")

    def tune() -> None:
        with Guard(nn.Linear(1, 1), loader=batches):
            next(iterator)
            raise error

    with pytest.raises(RestoreError, match="loader") as caught:
        tune()
    assert caught.value.__cause__ is error


def test_a_part_that_fails_does_not_keep_the_others_from_returning() -> None:
    class Stubborn(Recorder):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise RuntimeError("no")

    model, stubborn = nn.Linear(1, 1), Stubborn()
    guard = Guard(model, extras={"stubborn": stubborn})
    stubborn.count.value = 1
    before, rng = model.weight.item(), torch.get_rng_state()
    model.weight.data.add_(1)
    torch.rand(1)
    with pytest.raises(RestoreError, match="stubborn") as caught:
        guard.restore()
    assert str(caught.value.__cause__) == "no"
    assert model.weight.item() == before
    assert torch.equal(torch.get_rng_state(), rng)


def test_state_that_cannot_be_read_is_named_beside_all_that_differs() -> None:
    class Unreadable(Recorder):
        def state_dict(self) -> dict[str, Any]:
            if self.count.value:
                raise RuntimeError("no")
            return super().state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    batches = DataLoader(TensorDataset(torch.zeros(2)))
    iterator = batches._iterator = iter(batches)
    model, unreadable = nn.Linear(1, 1), Unreadable()
    before = model.weight.item()
    guard = Guard(model, loader=batches, extras={"unreadable": unreadable}).__enter__()
    next(iterator)
    model.weight.data.add_(1)
    unreadable.count.value = 1
    with pytest.raises(RestoreError) as caught:
        guard.__exit__(None, None, None)
    assert "unreadable" in str(caught.value)
    assert "loader" in str(caught.value)
    assert str(caught.value.__cause__) == "no"
    assert model.weight.item() == before


def test_an_interrupt_during_restore_waits_until_it_is_done() -> None:
    class Interrupting(Recorder):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            signal.raise_signal(signal.SIGINT)
            super().load_state_dict(state)

    world = World()
    witness, interrupting = world.witness(), Interrupting()
    guard = Guard(
        world.model,
        world.optimizer,
        loader=world.loader,
        extras={"interrupting": interrupting} | world.extras,
    )
    world.harm()
    interrupting.count.value = 1
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        guard.restore()
    assert guard.differences() == []
    assert world.witness() == witness
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_just_before_restoring_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    witness, real, calls = world.witness(), uninterrupted, []

    def interrupted(*signals: int) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*signals)

    monkeypatch.setattr(guard_module, "uninterrupted", interrupted)
    with pytest.raises(KeyboardInterrupt), world.guard():
        world.harm()
    assert world.witness() == witness


def test_it_works_outside_the_main_thread() -> None:
    model = nn.Linear(2, 2)
    before, errors = model.weight.detach().clone(), []

    def tune() -> None:
        try:
            with Guard(model):
                model.weight.data.add_(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=tune)
    thread.start()
    thread.join()
    assert errors == []
    assert torch.equal(model.weight, before)


def test_a_snapshot_changes_nothing_and_reads_no_data() -> None:
    class Exploding:
        def __iter__(self) -> Any:
            raise AssertionError("iterated")

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read")

    world = World()
    witness = world.witness()
    guard = Guard(world.model, world.optimizer, loader=Exploding(), extras=world.extras)
    assert guard.differences() == []
    assert digest_in(guard) == digest_in(guard)
    assert world.witness() == witness


def cost_s(make: Callable[[], nn.Module]) -> float:
    """Returns the processor's seconds of a snapshot, and of putting everything back and verifying it; least of three.

    Other processes on the machine do not count.
    """
    times = []
    for _ in range(3):
        model = make()
        began = time.process_time()
        guard = Guard(model)
        taken = time.process_time() - began
        for parameter in model.parameters():
            parameter.data.add_(1)
        began = time.process_time()
        with guard:
            pass
        times.append(taken + time.process_time() - began)
    return min(times)


def test_the_guard_costs_at_most_a_second_per_gigabyte() -> None:
    """The limit is doubled, for a processor whose memory others use at the same time."""
    state_bytes = 64 * 2**22
    seconds = cost_s(lambda: nn.ParameterList([nn.Parameter(torch.ones(1 << 20)) for _ in range(64)]))
    assert seconds < 2.0 * state_bytes / 1e9 + 0.1


def test_the_guard_of_a_small_model_takes_no_time() -> None:
    assert cost_s(Net) < 0.2


def test_several_models_and_optimizers_are_restored() -> None:
    workload = gans.workload()
    guard = Guard.of(workload)
    optimizers = workload.optimizer
    assert isinstance(optimizers, dict)
    before = digest_in(guard)
    for batch in gans.loader():
        gans.update(workload.model, optimizers, batch)  # type: ignore[arg-type]
    optimizers["generator"].param_groups[0]["lr"] = 7.0
    kept = optimizers.pop("critic")
    changed = guard.differences()
    assert any(name.startswith("model.critic.0.weight") for name in changed)
    assert any("generator" in name and "lr" in name for name in changed)
    guard.restore()
    assert guard.differences() == []
    assert digest_in(guard) == before
    assert optimizers["critic"] is kept
    assert not kept.state


def test_what_a_step_of_the_user_keeps_itself_is_restored() -> None:
    average: dict[str, torch.Tensor] = {}

    def averaging(models: nn.ModuleDict, optimizers: Any, batch: Any) -> Any:
        losses = gans.update(models, optimizers, batch)
        for name, parameter in models["generator"].named_parameters():
            kept = average.setdefault(name, parameter.detach().clone())
            kept.lerp_(parameter.detach(), 0.1)
        return losses

    workload = gans.workload(update_fn=averaging)
    batch = next(iter(gans.loader()))
    averaging(workload.model, workload.optimizer, batch)  # type: ignore[arg-type]
    guard, before = Guard.of(workload), {name: tensor.clone() for name, tensor in average.items()}
    averaging(workload.model, workload.optimizer, batch)  # type: ignore[arg-type]
    assert any("average" in name for name in guard.differences())
    guard.restore()
    assert all(torch.equal(average[name], tensor) for name, tensor in before.items())
    assert guard.differences() == []
