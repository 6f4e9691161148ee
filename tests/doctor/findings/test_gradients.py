"""Gradients and optimizer state that nothing uses."""

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("name", [name for name in MINE if name != "attached adversarial"])
def test_the_good_one_is_silent(name: str) -> None:
    assert shown(diagnosis_of(name, True)) == []


def test_what_no_optimizer_has_is_first_to_be_frozen_and_only_then_to_be_optimized() -> None:
    remedy = of(diagnosis_of("half optimized", False), "gradient-without-optimizer")[0].remedy
    assert remedy.index("requires_grad_(False)") < remedy.index("no_grad") < remedy.index("give them to an optimizer")


def test_an_optimizer_that_has_what_is_no_more_in_the_model_is_to_be_made_anew() -> None:
    [found] = of(diagnosis_of("replaced", False), "gradient-without-optimizer")
    assert "an optimizer has 2 parameters instead that no watched model has" in found.what
    assert "make the optimizer after the model was changed" in found.remedy
    assert "freeze" not in found.remedy


@pytest.mark.parametrize("name", [name for name in MINE if PAIRS[name].exact])
def test_the_size_is_that_of_the_real_difference(name: str) -> None:
    real = saved_bytes(name)
    assert real > MIB, "large enough that the limit means something"
    assert size_of(name) == pytest.approx(real, rel=0.02)


def test_gradients_without_an_optimizer_save_at_least_their_bytes() -> None:
    """Frozen, the body needs no activations either: what is counted is a lower bound."""
    real = saved_bytes("half optimized")
    assert 0.3 * real < size_of("half optimized") <= real
    [finding] = of(diagnosis_of("half optimized", False), "gradient-without-optimizer")
    assert "4 parameters" in finding.what
    assert [place.module for place in finding.places] == ["0.0.weight", "0.0.bias", "0.2.weight", "0.2.bias"]


def test_dropped_gradients_save_at_most_their_bytes() -> None:
    real = saved_bytes("attached adversarial")
    assert 0 < real <= size_of("attached adversarial")


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
