"""Memory at the peak that nothing reads again: its line, holder and size against the real allocation record."""

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autofit
from tests.doctor.cases import (
    MIB,
    PAIRS,
    Case,
    adversarial,
    diagnosed,
    diagnosis_of,
    first_order,
    halves,
    held_outputs,
    language,
    line,
    of,
    peak_bytes,
    shown,
    unchecked,
)

KINDS = ("dead-at-peak", "retain-graph", "saved-unused")
MINE = [name for name, pair in PAIRS.items() if pair.kind in KINDS]
GOOD_BUT_OTHERWISE = {"retained adversarial"}
"""The good one still has the other faults of the bad one."""


def saved_bytes(name: str) -> int:
    """Returns by how much the peak of the good one is lower, from torch's allocation record."""
    make = PAIRS[name].make
    return peak_bytes(lambda: make(False)) - peak_bytes(lambda: make(True))


@pytest.mark.parametrize("name", MINE)
def test_the_bad_one_is_found_with_line_and_holder(name: str) -> None:
    pair, found = PAIRS[name], diagnosis_of(name, False)
    [finding] = [each for each in of(found, pair.kind) if not each.minor]
    assert pair.holder in finding.places[0].holder
    assert finding.places[0].holder in finding.what
    assert finding.places[0].line.endswith(line(pair.line))
    assert line(pair.line) in finding.what
    assert finding.remedy


@pytest.mark.parametrize("name", [name for name in MINE if name not in GOOD_BUT_OTHERWISE])
def test_the_good_one_is_silent(name: str) -> None:
    assert shown(diagnosis_of(name, True)) == []


@pytest.mark.parametrize("name", [name for name in MINE if PAIRS[name].exact])
def test_the_size_is_that_of_the_real_difference(name: str) -> None:
    pair = PAIRS[name]
    [finding] = [each for each in of(diagnosis_of(name, False), pair.kind) if not each.minor]
    assert finding.size is not None
    assert finding.size.basis == "replayed"
    real = saved_bytes(name)
    assert real > MIB, "large enough that the limit means something"
    assert finding.size.peak_bytes == pytest.approx(real, rel=0.02)


def test_a_graph_of_gradients_that_nothing_uses_is_no_case_for_no_grad() -> None:
    [finding] = of(diagnosis_of("first order", False), "saved-unused")
    assert "create_graph=True" in finding.what
    assert "no_grad" not in finding.remedy
    assert finding.size is not None
    assert finding.size.bound == "", "a pass without a graph may need more or less beside"
    assert of(diagnosed(first_order(False, uses=True)), "saved-unused") == []


def test_the_size_of_a_pass_without_use_is_an_upper_bound() -> None:
    [finding] = of(diagnosis_of("taught", False), "saved-unused")
    assert finding.size is not None
    assert finding.size.peak_bytes is not None
    real = saved_bytes("taught")
    assert real > MIB
    assert real <= finding.size.peak_bytes <= 1.5 * real
    assert (finding.size.basis, finding.size.bound) == ("replayed", "at most")


def test_variables_whose_tensors_one_line_makes_are_one_finding_with_the_size_of_both() -> None:
    found, good = diagnosed(halves(False)), diagnosed(halves(True))
    [finding] = [each for each in of(found, "dead-at-peak") if not each.minor]
    assert {"`of_first`", "`of_second`"} <= set(re.findall("`[a-z_]+`", finding.what))
    assert re.search("del of_(first|second), of_(first|second)", finding.remedy)
    assert finding.size is not None
    real = peak_bytes(lambda: halves(False)) - peak_bytes(lambda: halves(True))
    assert real > MIB
    assert finding.size.peak_bytes == pytest.approx(real, rel=0.02)
    assert [each for each in of(good, "dead-at-peak") if not each.minor] == []


def test_a_local_variable_is_named_with_its_line() -> None:
    [finding] = of(diagnosis_of("held outputs", False), "dead-at-peak")
    assert finding.what.startswith("`outputs` in bad_step (tests/doctor/cases.py:")
    assert "float32 [512, 2000]" in finding.what
    assert "`del outputs`" in finding.remedy
    assert finding.places[0].module == "head"


def test_a_pass_without_use_is_named_by_the_line_that_calls_it() -> None:
    [finding] = of(diagnosis_of("taught", False), "saved-unused")
    assert finding.places[0].line.endswith(line("teacher"))
    assert "teacher." in finding.what


def test_what_a_pass_retains_is_not_said_twice() -> None:
    """The graph that `retain_graph` keeps is held by a variable too."""
    found = diagnosis_of("retained", False)
    assert [finding.id for finding in found.findings if not finding.minor] == ["retain-graph"]


def test_two_faults_are_two_findings() -> None:
    """Only what removing `retain_graph` saves counts as its size."""
    found = diagnosed(adversarial(False))
    assert {finding.id for finding in found.findings if not finding.minor} == {"retain-graph", "gradient-dropped"}
    size = of(found, "retain-graph")[0].size
    assert size is not None
    assert size.peak_bytes == pytest.approx(saved_bytes("retained adversarial"), rel=0.02)


def test_what_is_read_again_is_no_finding() -> None:
    model, ids, optimizer = language()

    def step() -> None:
        outputs = model(ids)
        nn.functional.cross_entropy(outputs, ids).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        outputs.detach().argmax(-1).eq(ids).sum()  # accuracy, after the peak
        optimizer.step()
        optimizer.zero_grad()

    assert of(diagnosed(Case(model, step)), "dead-at-peak") == []


def test_a_deleted_variable_is_no_finding() -> None:
    model, ids, optimizer = language()

    def step() -> None:
        outputs = model(ids)
        loss = nn.functional.cross_entropy(outputs, ids)
        del outputs
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    assert shown(diagnosed(Case(model, step))) == []


def test_one_variable_with_two_tensors_is_one_finding() -> None:
    model, ids, optimizer = language()

    def step() -> None:
        parts = {"a": model(ids[:256]), "b": model(ids[256:])}
        loss = sum(nn.functional.cross_entropy(parts[name], ids[:256]) for name in parts)
        assert isinstance(loss, torch.Tensor)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    [finding] = [each for each in of(diagnosed(Case(model, step)), "dead-at-peak") if not each.minor]
    assert finding.size is not None
    assert finding.size.peak_bytes == pytest.approx(2 * 4 * 256 * 2000, rel=0.3)
    assert "`del parts`" in finding.remedy


def test_what_a_variable_keeps_would_stay_without_its_graph() -> None:
    """Its graph is never used, but `torch.no_grad` would not free it."""
    model, ids, optimizer = language()
    state: dict[str, torch.Tensor] = {}

    def step() -> None:
        logits = model(ids)
        state["probabilities"] = logits.exp()
        loss = nn.functional.cross_entropy(logits, ids)
        del logits
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    found = [finding for finding in diagnosed(Case(model, step)).findings if not finding.minor]
    assert [finding.id for finding in found] == ["dead-at-peak"]
    assert "`state['probabilities']`" in found[0].what
    assert found[0].size is not None
    assert found[0].size.peak_bytes == 4 * 512 * 2000


def test_without_saved_tensors_passes_without_use_are_not_checked() -> None:
    found = diagnosed(held_outputs(False), saves=False)
    assert unchecked(found) == ["saved-unused"]
    assert [finding.id for finding in found.findings if not finding.minor] == ["dead-at-peak"]


def accumulating(good: bool) -> Case:
    """Two micro batches in a step. The bad one keeps the outputs of the last one, also while the next one runs."""
    torch.manual_seed(0)
    model, kept = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8192)), dict[str, torch.Tensor]()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(256, 64)
    targets = torch.randint(8192, (256,))

    def step() -> None:
        for _ in range(2):
            outputs = model(data)
            if not good:
                kept["last"] = outputs
            loss = F.cross_entropy(outputs, targets)
            del outputs
            torch.autograd.backward(loss)
            del loss
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def test_what_is_kept_from_one_micro_batch_to_the_next_counts_in_both() -> None:
    bad, good = diagnosed(accumulating(False)), diagnosed(accumulating(True))
    (finding,) = of(bad, "dead-at-peak")
    assert finding.size is not None
    assert finding.size.peak_bytes == bad.peak_bytes - good.peak_bytes
    assert finding.size.peak_bytes >= 256 * 8192 * 4, "the outputs of a micro batch"
    assert of(good, "dead-at-peak") == []


def residual(create_graph: bool, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss of a slope, whose own gradient is only looked at."""
    inputs = batch.clone().requires_grad_()
    out = model(inputs)
    (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    loss: torch.Tensor = (slope.sum(1) + out.squeeze(1)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph, retain_graph=True)
    assert sum(float(each.detach().norm()) for each in gradients) > 0
    return loss


def test_a_workload_is_measured_without_the_graph_that_nothing_uses() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    bad, good = (
        autofit.diagnose(model, [torch.rand(512, 64)], step_fn=partial(residual, creates), device="cpu")
        for creates in (True, False)
    )
    assert of(good, "saved-unused") == []
    [found] = of(bad, "saved-unused")
    assert found.size is not None
    assert (found.size.basis, found.size.bound) == ("measured", "")
    assert "without create_graph=True" in found.confirmed
    assert found.size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)
