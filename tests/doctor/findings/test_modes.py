"""Switches of modules that are not as a training needs them."""

import copy
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit import devices
from autofit.doctor.diagnose import diagnose_workload
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.modes import Modes
from autofit.doctor.seen import resting
from autofit.doctor.session import Scope
from autofit.doctor.sites import Site
from autofit.workloads.workload import Workload
from tests.doctor.cases import Case, diagnosed, of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
        self.gradient_checkpointing = False

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if self.gradient_checkpointing and self.training:
            out: torch.Tensor = checkpoint(self.body, data, use_reentrant=False)
        else:
            out = self.body(data)
        return out


def trained(model: nn.Module, teacher: nn.Module | None = None) -> Case:
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(16, 8)

    def step() -> None:
        loss = model(data).square().mean()
        if teacher is not None:
            with torch.no_grad():
                aim = teacher(data)
            loss = loss + (model(data) - aim).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(nn.ModuleList([model, *([] if teacher is None else [teacher])]), step)


def test_a_model_left_in_evaluation_mode_is_found_with_its_modules() -> None:
    (found,) = of(diagnosed(trained(Block().eval())), "modes")
    assert {place.module.rpartition(".")[2].partition(" ")[0] for place in found.places} == {"1", "3"}
    assert "train()" in found.remedy
    assert of(diagnosed(trained(Block())), "modes") == []


def test_the_line_that_left_the_model_in_evaluation_mode_is_named() -> None:
    model, data = Block(), torch.randn(16, 8)
    case = trained(model)

    def step(undone: bool) -> None:
        case.step()
        model.eval()
        with torch.no_grad():
            model(data)
        if undone:
            model.train()

    (found,) = of(diagnosed(Case(case.model, partial(step, False))), "modes")
    line = step.__code__.co_firstlineno + 2
    assert f"test_modes.py:{line} has put them" in found.what
    assert found.places[0].line.endswith(f"test_modes.py:{line}")
    assert "after that line" in found.remedy
    model.train()
    assert of(diagnosed(Case(case.model, partial(step, True))), "modes") == []


@pytest.mark.parametrize("of_weights", [False, True])
def test_evaluation_mode_is_right_for_an_attack_which_needs_the_gradient_of_the_input_alone(of_weights: bool) -> None:
    model, data = Block(), torch.randn(16, 8)
    case = trained(model)

    def step() -> None:
        model.eval()
        attacked = data.clone().requires_grad_()
        wanted = [attacked, *(model.parameters() if of_weights else ())]
        gradients = torch.autograd.grad(model(attacked).square().mean(), wanted)
        data.add_(gradients[0].sign(), alpha=0.01)
        model.train()
        case.step()

    assert len(of(diagnosed(Case(model, step)), "modes")) == of_weights


def test_a_teacher_in_evaluation_mode_is_as_it_should_be() -> None:
    model = Block()
    assert of(diagnosed(trained(model, copy.deepcopy(model).eval())), "modes") == []


def test_a_teacher_whose_statistics_change_is_found() -> None:
    model = Block()
    (found,) = of(diagnosed(trained(model, copy.deepcopy(model).train())), "modes")
    assert "statistics" in found.what


def test_a_teacher_that_follows_its_student_may_train_its_statistics() -> None:
    model = Block()
    teacher = copy.deepcopy(model).train()
    case = trained(model, teacher)

    def step() -> None:
        case.step()
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)

    assert of(diagnosed(Case(case.model, step)), "modes") == []


@pytest.mark.parametrize(("every", "count"), [(1, 0), (3, 1)])
def test_the_generator_of_a_gan_runs_without_gradients_in_each_step_and_an_evaluation_in_some(
    every: int, count: int
) -> None:
    model, steps = Block(), iter(range(100))
    case, data = trained(model), torch.randn(16, 8)

    def step() -> None:
        if next(steps) % every == 0:
            with torch.no_grad():
                model(data)
        case.step()

    found = of(diagnosed(Case(model, step)), "modes")
    assert ["statistics" in each.what for each in found] == [True] * count


def test_frozen_normalisation_is_intended() -> None:
    model = Block()
    model.body[1].eval().requires_grad_(False)
    assert of(diagnosed(trained(model)), "modes") == []


def scored(model: nn.Module, data: torch.Tensor, undone: bool) -> float:
    model.eval()
    with torch.no_grad():
        score: float = model(data).square().mean().item()
    if undone:
        model.train()
    return score


def found_in(model: Block, resting: Mapping[nn.Module, Site], **more: Any) -> list[Finding]:
    workload = Workload(model, [torch.randn(16, 8)], step_fn=lambda model, batch: model(batch).square().mean(), **more)
    scope = Scope([Modes()], runs=False, resting=resting)
    return list(diagnose_workload(workload, devices.choose("cpu"), "made", scope).findings)


def test_a_model_that_its_maker_left_in_evaluation_mode_is_found_although_autofit_trains_it_in_the_other() -> None:
    for undone in (False, True):
        model = Block()
        with resting() as lines:
            scored(model, torch.randn(16, 8), undone)
        found = found_in(model, lines)
        assert model.training is undone
        assert len(found) == (not undone)
        for each in found:
            assert not each.minor
            assert "body.1 (BatchNorm1d), body.3 (Dropout) in training mode" in each.what
            assert each.places[0].line.endswith(f"test_modes.py:{scored.__code__.co_firstlineno + 1}")
            assert "train() after that line" in each.remedy


def test_a_model_that_a_library_gives_in_evaluation_mode_is_minor_and_one_of_unknown_history_is_silent() -> None:
    model = Block().eval()
    line = Site("train.py:3", "transformers/modeling_utils.py:5")
    (found,) = found_in(model, {model.body[3]: line})
    assert found.minor
    assert "body.3 (Dropout)" in found.what
    assert found_in(model, {}) == []


def test_parts_at_rest_in_a_model_in_training_mode_are_intended_and_frozen_ones_in_any() -> None:
    model = Block()
    line = Site("train.py:3")
    model.body[3].eval()
    assert found_in(model, {model.body[3]: line}) == []
    model.eval()
    model.body[1].requires_grad_(False)
    assert found_in(model, {model.body[1]: line}) == []


def test_an_update_function_that_trains_in_evaluation_mode_is_said_once() -> None:
    model = Block().eval()

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    workload = Workload(model, [torch.randn(16, 8)], optimizer=torch.optim.SGD(model.parameters()), update_fn=update)
    scope = Scope([Modes()], runs=False, resting={model.body[3]: Site("train.py:3")})
    (found,) = diagnose_workload(workload, devices.choose("cpu"), "made", scope).findings
    assert "in evaluation mode" in found.what
    assert "given" not in found.what


@pytest.mark.parametrize(("switched", "training", "count"), [(True, False, 1), (True, True, 0), (False, True, 0)])
def test_checkpointing_that_recomputes_nothing_is_found(switched: bool, training: bool, count: int) -> None:
    model = Block().train(training)
    model.gradient_checkpointing = switched
    found = of(diagnosed(trained(model)), "checkpoint-no-effect")
    assert len(found) == count
    assert all("evaluation mode" in each.what for each in found)
    assert all(each.remedy == "call model.train()" for each in found)


@pytest.mark.parametrize(
    ("cause", "says", "remedy"),
    [
        ("frozen", "no parameter of these modules gets a gradient", "switch checkpointing off"),
        ("cached", "use_cache=True", "use_cache = False"),
        ("ignored", "does not use it", "checkpoint.checkpoint there"),
    ],
)
def test_only_the_cause_that_was_seen_is_named(cause: str, says: str, remedy: str) -> None:
    plain = Block()
    plain.forward = plain.body.forward  # type: ignore[method-assign]
    plain.gradient_checkpointing = True
    model = nn.Sequential(plain, nn.Linear(8, 8))
    plain.requires_grad_(cause != "frozen")
    model.config = SimpleNamespace(use_cache=cause == "cached")  # type: ignore[assignment]
    (found,) = of(diagnosed(trained(model)), "checkpoint-no-effect")
    assert says in found.what
    assert remedy in found.remedy
    assert "train()" not in found.remedy


quietly = pytest.mark.filterwarnings("ignore:None of the inputs")


class Folded(nn.Module):
    """Two blocks behind a frozen stem, run again in the backward pass."""

    def __init__(self, *, reentrant: bool = True) -> None:
        super().__init__()
        self.stem, self.tip = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.reentrant, self.awake = reentrant, False

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        data = self.stem(data)
        if self.awake:
            data.requires_grad_()
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=self.reentrant)
        out: torch.Tensor = self.tip(data)
        return out


@quietly
def test_reentrant_checkpointing_of_inputs_without_a_gradient_is_the_one_cause_of_what_is_not_trained() -> None:
    found = diagnosed(trained(Folded())).findings
    assert [each.id for each in found] == ["checkpoint-no-effect"]
    (only,) = found
    line = f"test_modes.py:{Folded.forward.__code__.co_firstlineno + 5}"
    assert f"{line} gets no input" in only.what
    assert "4 parameters (576 B), such as 0.blocks.0.0.weight, are not trained" in only.what
    assert only.places[0].line.endswith(line)
    assert {each.module for each in only.places[1:]} == {
        f"0.blocks.{i}.0.{n}" for i in (0, 1) for n in ("weight", "bias")
    }
    assert "use_reentrant=False" in only.remedy
    assert "enable_input_require_grads()" in only.remedy
    assert "train()" not in only.remedy


@quietly
def test_checkpointing_that_lets_gradients_through_or_has_nothing_to_train_is_silent() -> None:
    plain, awake, frozen, late = Folded(reentrant=False), Folded(), Folded(), Folded()
    awake.awake = True
    frozen.blocks.requires_grad_(False)
    late.stem.requires_grad_(True)
    for model in (plain, awake, frozen, late):
        assert diagnosed(trained(model)).findings == ()


@quietly
def test_an_evaluation_under_reentrant_checkpointing_cuts_nothing_off() -> None:
    model, other, data = Block(), Folded(), torch.randn(16, 8)
    optimizer = torch.optim.SGD([*model.parameters(), *other.blocks.parameters()])

    def step() -> None:
        with torch.no_grad():
            other(data)
        torch.autograd.backward(model(data).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    found = diagnosed(Case(nn.ModuleList([model, other]), step)).findings
    assert [each.id for each in found] == ["no-gradient"]
