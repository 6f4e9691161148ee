"""Gradients and optimizer state that nothing uses."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autofit
from autofit.doctor.loops import Enough, ScriptObserver
from tests.doctor.cases import (
    MIB,
    PAIRS,
    Case,
    adversarial,
    diagnosed,
    diagnosis_of,
    line,
    mlp,
    of,
    peak_bytes,
    recurrent,
    shown,
    unchecked,
)

KINDS = ("gradient-without-optimizer", "gradient-dropped", "no-gradient", "frozen-state", "zeroed-gradients")
MINE = [name for name, pair in PAIRS.items() if pair.kind in KINDS]


def saved_bytes(name: str) -> int:
    """Returns by how much the peak of the good one is lower, from torch's allocation record."""
    make = PAIRS[name].make
    return peak_bytes(lambda: make(False)) - peak_bytes(lambda: make(True))


def size_of(name: str) -> int:
    """Returns the size of the first finding of a pair's kind."""
    size = of(diagnosis_of(name, False), PAIRS[name].kind)[0].size
    assert size is not None
    assert size.peak_bytes is not None
    return size.peak_bytes


@pytest.mark.parametrize("name", MINE)
def test_the_bad_one_is_found_with_its_line(name: str) -> None:
    pair = PAIRS[name]
    found = [each for each in of(diagnosis_of(name, False), pair.kind) if not each.minor]
    assert found
    if pair.line:
        assert found[0].places[0].line.endswith(line(pair.line))
    else:
        assert found[0].places[0].module


@pytest.mark.parametrize("name", MINE)
def test_the_good_one_is_silent(name: str) -> None:
    assert shown(diagnosis_of(name, True)) == []


def test_what_no_optimizer_has_of_a_model_may_be_forgotten_or_not_meant_to_be_trained() -> None:
    remedy = of(diagnosis_of("half optimized", False), "gradient-without-optimizer")[0].remedy
    assert "if they are to be trained, give them to an optimizer; if not, freeze them" in remedy


def test_an_optimizer_that_has_what_is_no_more_in_the_model_is_to_be_made_anew() -> None:
    [found] = of(diagnosis_of("replaced", False), "gradient-without-optimizer")
    assert "an optimizer has 2 parameters instead that no watched model has" in found.what
    assert "make the optimizer after the model was changed" in found.remedy
    assert "freeze" not in found.remedy
    assert found.size is None, "what is trained then has a gradient too"
    assert not any(place.line for place in found.places), "the line of the call is not that of the fault"
    assert not found.minor


@pytest.mark.parametrize("name", [name for name in MINE if PAIRS[name].exact])
def test_the_size_is_that_of_the_real_difference(name: str) -> None:
    real = saved_bytes(name)
    assert real > MIB, "large enough that the limit means something"
    assert size_of(name) == pytest.approx(real, rel=0.02)


class Block(nn.Module):
    """A residual block whose forward pass names what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.wide(self.norm(x))
        active = nn.functional.gelu(wide)
        return x + nn.functional.dropout(self.narrow(active), 0.1)


class Rerun(Block):
    """A block that runs its forward pass again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return found


def blocks(kind: type[Block] = Block) -> nn.Sequential:
    return nn.Sequential(kind(), kind(), nn.Linear(64, 256))


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 8, 3)),
    )


def encoder() -> nn.Sequential:
    layers = (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2))
    return nn.Sequential(*layers, nn.Linear(64, 8))


def partly(
    make: Callable[[], nn.Sequential], trained: int, shape: Sequence[int], more: str = ""
) -> Callable[..., Case]:
    """Returns what makes a training of one of the parts of a model, the others of which are frozen in the good one."""

    def made(good: bool) -> Case:
        torch.manual_seed(0)
        model, x = make(), torch.randn(*shape)
        for place, part in enumerate(model):
            part.requires_grad_(place == trained or not good)
        optimizer = torch.optim.SGD(model[trained].parameters(), lr=0.1)

        def step() -> None:
            for _ in range(2 if more == "two passes" else 1):
                model(x).square().mean().backward()
            if more == "clipping":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.zero_grad(set_to_none=more != "zeros")

        return Case(model, step)

    return made


PARTLY = {
    "head": partly(blocks, 2, (2048, 64)),
    "first block": partly(blocks, 0, (2048, 64)),
    "block in the middle": partly(blocks, 1, (2048, 64)),
    "two passes": partly(blocks, 2, (2048, 64), "two passes"),
    "clipping": partly(blocks, 2, (2048, 64), "clipping"),
    "zeros": partly(blocks, 2, (2048, 64), "zeros"),
    "checkpoints": partly(partial(blocks, Rerun), 2, (2048, 64)),
    "convolutions": partly(convolutions, 7, (16, 1, 48, 48)),
    "convolution in the middle": partly(convolutions, 4, (16, 1, 48, 48)),
    "encoder": partly(encoder, 2, (16, 64, 64)),
    "layer of an encoder": partly(encoder, 1, (16, 64, 64)),
}


def unoptimized_bytes(make: Callable[..., Case]) -> tuple[int, int]:
    """Returns the size of the finding, and by how much the peak of the good one is lower."""
    finding = of(diagnosed(make(False)), "gradient-without-optimizer")[0]
    assert finding.size is not None
    assert finding.size.peak_bytes is not None
    assert (finding.size.basis, finding.size.bound) == ("replayed", "at least")
    return finding.size.peak_bytes, peak_bytes(lambda: make(False)) - peak_bytes(lambda: make(True))


@pytest.mark.parametrize("name", PARTLY)
def test_gradients_without_an_optimizer_have_the_size_that_freezing_saves(name: str) -> None:
    found, real = unoptimized_bytes(PARTLY[name])
    assert real > MIB / 2, "large enough that the limit means something"
    assert found == pytest.approx(real, rel=0.02)


HOLDING: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda out: None,
    "the tensor": lambda out: out,
    "detached": lambda out: out.detach(),
    "view": lambda out: out[:1],
    "array": lambda out: out.detach().numpy(),
    "storage": lambda out: out.untyped_storage(),
    "parameter": lambda out: nn.Parameter(out.detach()),
}


@pytest.mark.parametrize("what", HOLDING)
def test_what_the_user_holds_too_is_not_released(what: str) -> None:
    """The peak is in the head, when the outputs of the frozen body are still held, or not."""

    def made(good: bool) -> Case:
        torch.manual_seed(0)
        body, head = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)), nn.Linear(64, 1024)
        body.requires_grad_(not good)
        model, x = nn.ModuleList([body, head]), torch.randn(1024, 64)
        optimizer, held = torch.optim.SGD(head.parameters(), lr=0.1), list[object]()

        def step() -> None:
            active = body[1](body[0](x))
            held.append(HOLDING[what](active))
            out = body[2](active)
            del active
            head(out).square().mean().backward()
            held.clear()
            optimizer.step()
            model.zero_grad()

        return Case(model, step)

    found, real = unoptimized_bytes(made)
    assert found == real > MIB


def test_parameters_without_an_optimizer_are_named() -> None:
    [finding] = of(diagnosis_of("half optimized", False), "gradient-without-optimizer")
    assert "4 parameters" in finding.what
    assert [place.module for place in finding.places] == ["0.0.weight", "0.0.bias", "0.2.weight", "0.2.bias"]


class Apart(nn.Module):
    """A network with parts that a list or a dict holds, and a scale that is an attribute."""

    def __init__(self, *, listed: bool, frozen: bool = False) -> None:
        super().__init__()
        layers, scale = [nn.Linear(64, 512), nn.Linear(512, 512)], torch.ones(512, requires_grad=not frozen)
        for layer in layers:
            layer.requires_grad_(not frozen)
        self.parts: Any = {"deep": nn.ModuleList(layers) if listed else layers}
        self.scale = nn.Parameter(scale) if listed else scale
        if listed:
            self.parts = nn.ModuleDict(self.parts)
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.parts["deep"]:
            x = layer(x).relu()
        out: torch.Tensor = self.head(x * self.scale)
        return out


def apart(*, by_hand: bool = False, **more: bool) -> Case:
    torch.manual_seed(0)
    model = Apart(**more)
    optimizer, x, y = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(1024, 64), torch.randint(10, (1024,))
    loose = [*model.parts["deep"][0].parameters(), *model.parts["deep"][1].parameters(), model.scale]

    def step() -> None:
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        for each in loose if by_hand else ():
            each.data.sub_(each.grad, alpha=0.1)
        optimizer.step()
        model.zero_grad()
        for each in loose:
            each.grad = None

    return Case(model, step)


def test_parameters_that_a_model_does_not_list_are_named_by_the_way_to_them_with_what_lists_them() -> None:
    [found] = diagnosed(apart(listed=False)).findings
    assert found.id == "gradient-without-optimizer"
    way = "Apart.parts['deep']"
    names = [f"{way}[{number}].{name}" for number in (0, 1) for name in ("weight", "bias")]
    assert [place.module for place in found.places] == [*names, "Apart.scale"]
    assert "5 parameters" in found.what
    assert "model.parameters() does not list them" in found.what
    assert all(text in found.remedy for text in ("nn.ModuleList", "nn.ModuleDict", "nn.Parameter"))
    real = peak_bytes(lambda: apart(listed=False)) - peak_bytes(lambda: apart(listed=False, frozen=True))
    assert found.size is not None
    assert real > MIB
    assert found.size.peak_bytes == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize(
    "more", [{"listed": True}, {"listed": False, "frozen": True}, {"by_hand": True, "listed": False}]
)
def test_parameters_that_are_listed_frozen_or_trained_by_hand_are_silent(more: dict[str, bool]) -> None:
    assert of(diagnosed(apart(**more)), "gradient-without-optimizer") == []


def test_a_workload_is_told_of_the_parameters_that_its_model_does_not_list_and_their_size_is_measured() -> None:
    batches = [(torch.randn(1024, 64), torch.randint(10, (1024,)))]
    [found] = of(
        autofit.diagnose(Apart(listed=False), batches, loss_fn=nn.functional.cross_entropy, device="cpu"),
        "gradient-without-optimizer",
    )
    assert found.places[0].module == "Apart.parts['deep'][0].weight"
    assert found.size is not None
    assert (found.size.basis, found.confirmed) == ("measured", "these parameters frozen")
    listed = autofit.diagnose(Apart(listed=True), batches, loss_fn=nn.functional.cross_entropy, device="cpu")
    assert of(listed, "gradient-without-optimizer") == []


def test_parameters_that_are_listed_and_those_that_are_not_are_two_findings() -> None:
    model = Apart(listed=False)
    model.add_module("tail", nn.Linear(10, 10))
    optimizer, x = torch.optim.SGD(model.head.parameters(), lr=0.1), torch.randn(64, 64)

    def step() -> None:
        torch.autograd.backward(model.get_submodule("tail")(model(x)).square().mean())
        optimizer.step()
        model.zero_grad()

    others, listed = of(diagnosed(Case(model, step)), "gradient-without-optimizer")  # by size
    assert {each.module for each in listed.places} == {"Apart.tail.weight", "Apart.tail.bias"}
    assert "ModuleList" not in listed.remedy
    assert "ModuleList" in others.remedy


@pytest.mark.parametrize("name", ["adversarial", "shared adversarial"])
def test_the_sizes_of_two_faults_add_up_to_the_real_difference(name: str) -> None:
    found = [each for each in diagnosis_of(name, False).findings if each.size is not None and not each.minor]
    assert [each.id for each in found] == ["retain-graph", "gradient-dropped"]
    sizes = [each.size.peak_bytes for each in found if each.size is not None and each.size.peak_bytes is not None]
    assert len(sizes) == 2
    assert sum(sizes) == pytest.approx(saved_bytes(name), rel=0.02)


def test_each_pass_with_dropped_gradients_is_named() -> None:
    found = of(diagnosed(adversarial(False)), "gradient-dropped")
    assert [each.places[0].line.rpartition("/")[2] for each in found] == [line("judge"), line("generator")]
    assert "generator." in found[0].what
    assert "judge." in found[1].what
    assert found[1].size is None, "its gradients are not alive at the peak"


def test_parameters_without_a_gradient_are_named() -> None:
    [finding] = of(diagnosis_of("unused head", False), "no-gradient")
    assert [place.module for place in finding.places] == ["spare.weight", "spare.bias"]
    assert "2 parameters (1.002 MiB)" in finding.what
    assert finding.size is None


def test_a_small_head_without_a_gradient_is_no_minor_finding() -> None:
    model, x, y = mlp(width=512)
    both = nn.ModuleDict({"body": model, "spare": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)

    def step() -> None:
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    [found] = of(diagnosed(Case(both, step)), "no-gradient")
    assert not found.minor
    assert "no loss of the 6 watched steps reaches" in found.what


def test_the_state_of_frozen_parameters_is_named() -> None:
    [finding] = of(diagnosis_of("thawed", False), "frozen-state")
    assert [place.module for place in finding.places] == ["0.weight", "0.bias"]
    assert size_of("thawed") == pytest.approx(2 * 4 * (512 * 1024 + 1024), rel=1e-4)


def test_gradients_set_to_zero_are_counted() -> None:
    [finding] = of(diagnosis_of("zeroed", False), "zeroed-gradients")
    assert finding.what == "the memory of 6 gradients, set to zero, is in use through the forward pass"
    assert "set_to_none" in finding.remedy


def test_gradients_that_are_zeroed_after_the_update_count_too() -> None:
    model, x, y = mlp(width=512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    case = Case(model, step)
    found = diagnosed(case)
    assert [finding.id for finding in found.findings] in ([], ["zeroed-gradients"])
    assert not [finding for finding in found.findings if finding.size and (finding.size.peak_bytes or 0) < 0]


def test_accumulated_gradients_are_no_finding() -> None:
    model, x, y = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for half in range(2):
            nn.functional.cross_entropy(model(x[32 * half : 32 * half + 32]), y[32 * half : 32 * half + 32]).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    assert diagnosed(Case(model, step)).findings == ()


def test_without_an_update_nothing_is_said_of_optimizers() -> None:
    found = diagnosed(recurrent(True))
    assert set(unchecked(found)) == {"gradient-without-optimizer", "gradient-dropped", "no-gradient"}
    assert sum("no optimizer stepped" in each.reason for each in found.unchecked) == 3
    assert peak_bytes(lambda: recurrent(True)) > 0


class Distilled:
    """A loss with a target of its own, whose graph is made too in the bad one."""

    def __init__(self, model: nn.Module, good: bool) -> None:
        self.slow, self.good = deepcopy(model), good

    def __call__(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not self.good):
            wanted = self.slow(batch)
        return nn.functional.mse_loss(model(batch), wanted)


def distilled() -> tuple[nn.Sequential, list[torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 64))
    return model, [torch.randn(64, 256) for _ in range(4)], torch.optim.SGD(model.parameters(), lr=0.1)


def distilled_case(good: bool) -> Case:
    model, batches, optimizer = distilled()
    loss = Distilled(model, good)

    def step() -> None:
        torch.autograd.backward(loss(model, batches[0]))
        optimizer.step()
        model.zero_grad()

    return Case(model, step)


@pytest.mark.parametrize("good", [False, True])
def test_a_target_without_an_optimizer_is_named_by_its_holder_and_its_call(good: bool) -> None:
    model, batches, optimizer = distilled()
    found = autofit.diagnose(model, batches, step_fn=Distilled(model, good), optimizer=optimizer, device="cpu")
    if good:
        assert shown(found) == []
        return
    [finding] = of(found, "gradient-without-optimizer")
    code = Distilled.__call__.__code__
    number = next(number for _, _, number in code.co_lines() if number == code.co_firstlineno + 2)
    site = f"test_gradients.py:{number}"
    assert "4 parameters (50% of the model), such as step_fn.slow.0.weight (called at " in finding.what
    assert f"{site})" in finding.what
    assert [place.module for place in finding.places] == [
        f"step_fn.slow.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    ]
    assert all(place.line.endswith(site) for place in finding.places)
    assert "under torch.no_grad()" in finding.remedy
    assert finding.size is not None
    assert (finding.size.basis, finding.size.bound) == ("measured", "")
    real = peak_bytes(lambda: distilled_case(False)) - peak_bytes(lambda: distilled_case(True))
    assert real > MIB
    assert finding.size.peak_bytes == pytest.approx(real, rel=0.02)


def test_parameters_of_several_models_have_the_names_that_a_script_gives_them() -> None:
    torch.manual_seed(0)
    student, teacher, x = nn.Linear(512, 512), nn.Linear(512, 512), torch.randn(8, 512)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(9):
            torch.autograd.backward(nn.functional.mse_loss(student(x), teacher(x)))
            optimizer.step()
            optimizer.zero_grad()

    with ScriptObserver("train.py") as observer, suppress(Enough):
        train()
    assert observer.diagnosis is not None
    [finding] = of(observer.diagnosis, "gradient-without-optimizer")
    assert [place.module for place in finding.places] == ["teacher.weight", "teacher.bias"]
