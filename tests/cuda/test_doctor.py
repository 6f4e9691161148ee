"""The doctor on CUDA: sizes against the caching allocator's own counts, lines although the backward thread has none.

A phantom's kernels compute nothing, but what is allocated, held and released is real.
"""

import gc
from collections.abc import Callable
from functools import cache

import pytest
import torch

import autofit
from autofit.core.budget import Budget
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Diagnosis
from autofit.doctor.findings import chosen
from autofit.doctor.findings.accelerators import EXPANDABLE
from autofit.doctor.observer import Observer
from autofit.doctor.session import collection_off
from autofit.doctor.watch import Watch
from autofit.memory.peak import memory_use
from tests.cuda.device_process import Process
from tests.cuda.targets import varying
from tests.doctor.cases import (
    LEAKS,
    LOOK_ALIKES,
    MIB,
    ON_ACCELERATORS,
    PAIRS,
    Case,
    adversarial,
    diagnosed,
    held_outputs,
    line,
    observed,
    of,
    shown,
)

ROWS, WIDTH = 512, 1024
MEMORY = chosen(skip=sorted(ON_ACCELERATORS))
"""All kinds but those of accelerators, which every training in float32 has."""
EXACT = [name for name, pair in PAIRS.items() if pair.exact]
SILENT = [name for name in PAIRS if name != "retained adversarial"]
"""Pairs whose good one has no other fault."""


def peak_bytes(make: Callable[[], Case]) -> int:
    """Returns the peak of a step of a training, as the allocator counts it, without what libraries keep."""
    with collection_off():
        case = make()
        for _ in range(3):
            case.step()
        torch.cuda.reset_peak_memory_stats()
        case.step()
        return torch.cuda.max_memory_allocated()


def saved_bytes(name: str) -> int:
    """Returns by how much the peak of a pair's good one is lower."""
    make, found = PAIRS[name].make, []
    peak_bytes(lambda: make(False, "cuda"))  # each thread allocates a workspace of cuBLAS once
    for good in (False, True):
        gc.collect()
        found.append(peak_bytes(lambda good=good: make(good, "cuda")))  # type: ignore[misc]  # bound early
    return found[0] - found[1]


@pytest.fixture
def small(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with a budget under which slow growth is no minor finding."""
    monkeypatch.setattr(device, "budget", lambda memory, varies: Budget(memory_bytes=64 * MIB))
    return device


@pytest.mark.parametrize("name", EXACT)
def test_sizes_are_those_of_the_allocator(name: str, device: Device) -> None:
    pair = PAIRS[name]
    found = diagnosed(pair.make(False, "cuda"), device, detectors=MEMORY)
    [finding] = [each for each in of(found, pair.kind) if not each.minor]
    real = saved_bytes(name)
    assert real > MIB, "large enough that the limit means something"
    assert finding.size is not None
    assert finding.size.peak_bytes == pytest.approx(real, rel=0.05)
    assert pair.holder in finding.places[0].holder
    if pair.line:
        assert finding.places[0].line.endswith(line(pair.line))


def test_both_faults_of_a_gan_are_found_by_line(device: Device) -> None:
    found = diagnosed(adversarial(False, "cuda"), device, detectors=MEMORY)
    lines = {finding.id: finding.places[0].line.rpartition("/")[2] for finding in reversed(found.findings)}
    assert lines["retain-graph"] == lines["gradient-dropped"] == line("judge")
    assert "generator." in of(found, "gradient-dropped")[0].what


@pytest.mark.parametrize("name", SILENT)
def test_good_ones_are_silent(name: str, device: Device) -> None:
    assert shown(diagnosed(PAIRS[name].make(True, "cuda"), device, detectors=MEMORY)) == []


@pytest.mark.parametrize("name", ["held outputs", "adversarial"])
def test_the_peak_is_that_of_the_allocator(name: str, device: Device) -> None:
    make = PAIRS[name].make
    before = torch.cuda.memory_allocated()
    found = diagnosed(make(False, "cuda"), device, detectors=MEMORY)
    gc.collect()
    real = peak_bytes(lambda: make(False, "cuda")) - before
    assert found.peak_bytes == pytest.approx(real, rel=0.05)


def test_operators_of_the_backward_thread_have_line_and_module(device: Device) -> None:
    """That thread has no frame of the user's: the line is that of the node, or of the call of `backward`."""
    case = held_outputs(False, "cuda")
    account = device.account()
    assert account is not None
    watch = observed(case, account, "cuda").watch
    place = [mark.name for mark in watch.marks].index("step 5 backward")
    begin, end = (mark.event for mark in watch.marks[place : place + 2])
    made = [event for event in watch.events[begin:end] if event >= 0]
    assert len(made) > 10
    assert all(watch.sites[handle].user.startswith("tests/doctor/cases.py:") for handle in made)
    modules = {watch.modules.names[watch.origins[handle]] for handle in made if watch.origins[handle] >= 0}
    assert modules >= {"head", "body.0", "body.2"}


def _growth(name: str, small: Device) -> tuple[Diagnosis, int]:
    """Returns the diagnosis of a leak, and the bytes that each step leaves in the allocator."""
    found = diagnosed(LEAKS[name].make(device="cuda"), small, detectors=MEMORY)
    case, levels = LEAKS[name].make(device="cuda"), []
    with collection_off():
        for _ in range(4):
            case.step()
            levels.append(torch.cuda.memory_allocated())
    return found, levels[-1] - levels[-2]


@pytest.mark.parametrize(
    "name", ["detached outputs", "view of an output", "evaluation with gradients", "cycle", "hook"]
)
def test_growth_is_that_of_the_allocator(name: str, small: Device) -> None:
    found, real = _growth(name, small)
    size = found.findings[0].size
    assert size is not None
    assert size.bytes_per_step is not None
    assert real > 0
    assert size.bytes_per_step == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found_with_holder_and_line(name: str, small: Device) -> None:
    leak = LEAKS[name]
    found = diagnosed(leak.make(device="cuda"), small, detectors=MEMORY)
    growth = [finding for finding in found.findings if finding.id in leak.kinds and not finding.minor]
    assert len(growth) == 1
    assert leak.holder in "".join(place.holder for place in growth[0].places)
    assert leak.text in growth[0].what
    assert growth[0].id == "graph-grows" or growth[0].places[0].line.startswith("tests/doctor/cases.py:")


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_are_no_finding(name: str, small: Device) -> None:
    assert shown(diagnosed(LOOK_ALIKES[name](device="cuda"), small, detectors=MEMORY)) == []


LENGTHS = {
    "growing": [500, 1200, 1900, 2600, 3300, 4000, 4700],
    "varying": [1000, 3500, 700, 5200, 4100, 1500, 6100],
    "shrinking": [6100, 5000, 5500, 3000, 2000, 5900, 1000],
}
"""Lengths of the texts of 7 steps. The doctor watches all but the first, whose segments the shrinking ones use."""


@cache
def reserved_bytes(name: str, settings: str) -> int:
    """Returns what the allocator reserves for steps in a fresh process with these options."""
    with Process(PYTORCH_ALLOC_CONF=settings) as process:
        return int(process.ask("train", lengths=LENGTHS[name])["reserved"])


@pytest.mark.parametrize("settings", ["", EXPANDABLE])
@pytest.mark.parametrize("name", LENGTHS)
def test_replayed_options_reserve_what_a_fresh_process_does(name: str, settings: str, device: Device) -> None:
    account, (model, step) = device.account(), varying(LENGTHS[name])
    assert account is not None
    watch = Watch(torch.device("cuda"), [model])
    observer = Observer(watch, account, 64 * MIB, dict, len(LENGTHS[name]))
    with collection_off(), watch.watching():
        for _ in LENGTHS[name]:
            step()
            observer.boundary()
    replayed = memory_use(observer.result().whole, account.model_copy(update={"settings": settings}))
    assert replayed.reserved_bytes == pytest.approx(reserved_bytes(name, settings), rel=0.05)


@pytest.mark.parametrize("name", LENGTHS)
def test_fragmentation_is_at_least_what_a_fresh_process_avoids(name: str, device: Device) -> None:
    real = reserved_bytes(name, "") - reserved_bytes(name, EXPANDABLE)
    torch.cuda.reset_peak_memory_stats()
    (found,) = of(diagnosed(Case(*varying(LENGTHS[name])), device, chosen(["fragmentation"])), "fragmentation")
    assert found.size is not None
    assert found.size.peak_bytes is not None
    assert found.size.bound == "at least"
    assert 0.85 * real <= found.size.peak_bytes <= 1.01 * real


def waiting(good: bool) -> Case:
    """A training that reads its loss and indexes by a mask in each step, and copies pageable batches."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
    optimizer, batch = torch.optim.SGD(model.parameters()), torch.randn(ROWS, WIDTH)
    here, log = batch.to("cuda"), list[float]()

    def step() -> None:
        x = here if good else batch.to("cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not good:
            log.append(loss.item())
            log.append(x[x[:, 0] > 0].shape[0])

    return Case(model, step)


def test_waits_have_their_line_and_reason(device: Device) -> None:
    found = of(diagnosed(waiting(False), device), "sync")
    assert len(found) == 3
    lines = [place.line for each in found for place in each.places]
    assert all("test_doctor.py:" in line for line in lines)
    assert len(set(lines)) == 3
    reasons = " ".join(each.what for each in found)
    assert all(text in reasons for text in ("page-locked", "a value is read", "a size depends on data"))
    assert of(diagnosed(waiting(True), device), "sync") == []


def test_products_in_float32_are_counted(device: Device) -> None:
    (found,) = of(diagnosed(waiting(True), device), "fp32-products")
    assert found.what.startswith("100% of")


class Teaching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = torch.nn.Linear(WIDTH, WIDTH)
        self.teacher = torch.nn.Sequential(*(torch.nn.Sequential(self.student, torch.nn.Tanh()) for _ in range(8)))


def taught_by(good: bool) -> Callable[[Teaching, torch.Tensor], torch.Tensor]:
    def step_fn(model: Teaching, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not good):
            aim = model.teacher(x)
        loss: torch.Tensor = (model.student(x) - aim.detach()).square().mean()
        return loss

    return step_fn


def test_a_measured_size_is_that_of_the_correction(device: Device) -> None:
    def diagnosis(good: bool) -> Diagnosis:
        model = Teaching().to("cuda")
        optimizer = torch.optim.SGD(model.parameters())
        return autofit.diagnose(
            model, [torch.randn(ROWS, WIDTH)], step_fn=taught_by(good), optimizer=optimizer, device="cuda"
        )

    bad, good = diagnosis(False), diagnosis(True)
    (found,) = of(bad, "saved-unused")
    assert found.size is not None
    assert found.size.peak_bytes is not None
    assert (found.size.basis, found.size.bound) == ("measured", "")
    assert found.size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.05)
    assert found.size.peak_bytes > MIB
    assert of(good, "saved-unused") == []


class Scaled(torch.nn.Module):
    """Products in a loop, under autocast, of a frozen or a trained weight."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.body = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(not frozen)
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            for _ in range(4):
                x = self.body(x)
            out: torch.Tensor = self.head(x)
        return out


@pytest.mark.parametrize("frozen", [True, False])
def test_autocast_does_not_remember_the_casts_of_frozen_weights(frozen: bool, device: Device) -> None:
    torch.manual_seed(0)
    model, x = Scaled(frozen).to("cuda"), torch.randn(ROWS, WIDTH, device="cuda")
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad])

    def step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = of(diagnosed(Case(model, step), device, chosen(["autocast-cache"])), "autocast-cache")
    assert len(found) == frozen
    assert all("body" in each.what or "Linear" in each.what or "1024" in each.what for each in found)


def test_waits_are_timed_where_steps_run_again() -> None:
    def step_fn(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        assert loss.item() == loss.item()
        return loss

    model = torch.nn.Linear(WIDTH, WIDTH).to("cuda")
    optimizer = torch.optim.SGD(model.parameters())
    found = autofit.diagnose(model, [torch.randn(ROWS, WIDTH)], step_fn=step_fn, optimizer=optimizer, device="cuda")
    (read,) = [each for each in of(found, "sync") if "a value is read" in each.what]
    assert "It waits for at least " in read.evidence[0]
    assert {"launch-bound", "cudnn-workspace"} <= {*found.checked, *(each.id for each in found.unchecked)}
