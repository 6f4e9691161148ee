"""A context that answers every call with an error: the plan is told as poisoned, and only a new process goes on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit.api import tune
from autofit.core.errors import DevicePoisoned
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.workloads.workload import Workload
from tests.cuda import targets
from tests.cuda.scaled import tabular
from tests.cuda.searches import quick
from tests.cuda.targets import BATCHING, MIB, Sized, adam, rows, sized
from tests.digests import digest_of
from tests.phantom.phantom import Phantom

pytestmark = pytest.mark.phantom

TARGET = f"{Path(targets.__file__)}:make_poisoning"
STICKY = {700: "an illegal memory access", 710: "device-side assert", 719: "unspecified launch failure"}


class Poisoned(torch.autograd.Function):
    """Burns through in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strike: Callable[[], None]) -> torch.Tensor:
        ctx.strike = strike
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.strike()
        return gradient, None


class Striking:
    """A step that poisons the device in a phase of the n-th step; to be told when to begin."""

    def __init__(self, phantom: Phantom, phase: str = "forward", step: int = 1, code: int = 700) -> None:
        self.phantom, self.phase, self.step, self.code = phantom, phase, step, code
        self.live, self.steps = False, 0

    def strike(self, *_: Any) -> None:
        if self.live and self.steps == self.step:
            self.phantom.fail_after(0, self.code)

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.steps += self.live
        if self.phase == "forward":
            self.strike()
        loss = model(batch[0])
        result: torch.Tensor = Poisoned.apply(loss, self.strike) if self.phase == "backward" else loss  # type: ignore[no-untyped-call]  # torch has no types here
        return result


def poisoned_at(striking: Striking, device: Device, purpose: Purpose = Purpose.PROBE) -> Any:
    """Returns the outcome of a run that is struck, and everything put back once the device answers again."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = adam(parameters)
        if striking.phase == "optimizer":
            made.register_step_pre_hook(striking.strike)
        return made

    workload = sized(striking, optimizer=optimizer)
    before = digest_of(workload.model)
    with LocalBench(workload, device, BATCHING) as bench:
        striking.live = True
        outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
        striking.live = False
        striking.phantom.reset()
    assert digest_of(workload.model) == before
    return outcome


@pytest.mark.parametrize("code", STICKY)
@pytest.mark.fault("F14")
def test_an_error_that_stays_is_told_as_poison(code: int, device: Device, phantom: Phantom) -> None:
    outcome = poisoned_at(Striking(phantom, code=code), device)
    assert outcome.status is Status.POISONED
    assert STICKY[code] in outcome.reason
    assert not outcome.status.does_not_fit


@pytest.mark.parametrize(("phase", "step"), [("forward", 2), ("backward", 1), ("backward", 3), ("optimizer", 2)])
def test_wherever_it_happens(phase: str, step: int, device: Device, phantom: Phantom) -> None:
    outcome = poisoned_at(Striking(phantom, phase, step), device)
    assert outcome.status is Status.POISONED


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
def test_in_a_race_and_in_a_proof(purpose: Purpose, device: Device, phantom: Phantom) -> None:
    assert poisoned_at(Striking(phantom, step=3), device, purpose).status is Status.POISONED


def test_poison_that_shows_only_when_the_device_is_waited_for(device: Device, phantom: Phantom) -> None:
    """Kernels run later than they are launched: here everything returns, and then nothing answers."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0])
        if live:
            phantom.fail_after(0)
            raise ValueError("an error of the user's own, on the way")
        return loss

    live: list[bool] = []
    with LocalBench(sized(step), device, BATCHING) as bench:
        live.append(True)
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.POISONED
        assert outcome.reason.startswith("the device no longer answers: ")
        phantom.reset()


def search(striking: Striking) -> Any:
    return tune(
        Sized(),
        rows(),
        step_fn=striking,
        strategies=("batching",),
        memory_budget="4GiB",
        study=":memory:",
        progress=False,
        device="cuda",
    )


@pytest.mark.parametrize("step", [2, 12])
def test_a_search_in_this_process_ends_and_says_what_to_do(step: int, phantom: Phantom) -> None:
    """What is on the device cannot be put back: that is said beside the error, and does not hide it."""
    striking = Striking(phantom, step=step)
    striking.live = True
    with pytest.raises(DevicePoisoned) as error:
        search(striking)
    phantom.reset()
    assert error.value.exit_code == 8
    assert "start a new process" in str(error.value)
    assert "illegal memory access" in str(error.value)
    assert any("changed after tuning" in note for note in error.value.__notes__)


@pytest.mark.parametrize("calls", range(20, 320, 12))
@pytest.mark.fault("F14")
def test_at_any_call_it_is_told_as_poison_with_what_was_lost(
    calls: int, phantom: Phantom, trusted_values: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the guard's work, which reads and writes what was passed in."""
    quick(monkeypatch)
    workload = tabular(1)
    before = digest_of(workload.model)
    phantom.fail_after(calls)
    with pytest.raises(DevicePoisoned) as error:
        tune(
            workload.model,
            workload.loader,
            strategies=("batching",),
            memory_budget="4GiB",
            study=":memory:",
            progress=False,
        )
    phantom.reset()
    notes = getattr(error.value, "__notes__", [])
    assert digest_of(workload.model) == before or any("changed after tuning" in note for note in notes)
    torch.cuda.set_per_process_memory_fraction(1.0)  # on the device: it could not be written


def test_a_device_that_is_poisoned_when_a_search_begins(device: Device, phantom: Phantom) -> None:
    workload = sized(None)  # the loss is looked for by running the model
    phantom.fail_after(0)
    with pytest.raises(DevicePoisoned, match=r"answers every call with an error: .*illegal memory access"):
        LocalBench(workload, device, BATCHING)


def test_the_host_side_is_put_back_although_the_device_is_gone(phantom: Phantom) -> None:
    model: Any = Sized()
    model.mode = "the user's"

    class Changing(Striking):
        def __call__(self, model: Any, batch: Any) -> torch.Tensor:
            model.mode = "changed by a step"
            return super().__call__(model, batch)

    striking = Changing(phantom, step=2)
    striking.live = True
    state = torch.get_rng_state()
    with pytest.raises(DevicePoisoned):
        tune(
            model,
            rows(),
            step_fn=striking,
            strategies=("batching",),
            memory_budget="4GiB",
            study=":memory:",
            progress=False,
        )
    phantom.reset()
    assert model.mode == "the user's"
    assert torch.equal(torch.get_rng_state(), state)
    torch.cuda.set_per_process_memory_fraction(1.0)  # on the device: it could not be written


@pytest.mark.fault("F14")
def test_a_worker_that_was_poisoned_is_replaced(tmp_path: Path) -> None:
    orders, pids = tmp_path / "orders", tmp_path / "pids"
    orders.write_text("")
    target = Target(TARGET, {"orders": str(orders), "pids": str(pids)}, device="cuda", options=BATCHING)
    with RemoteBench(target) as bench:
        orders.write_text("strike once")
        plan = bench.briefing.space.baseline
        assert bench.evaluate(plan, Purpose.BLOCK).status is Status.POISONED
        again = bench.evaluate(plan, Purpose.BLOCK)
        assert again.measured, again
        assert bench.evaluate(plan, Purpose.BLOCK).measured
    assert len(set(pids.read_text().split())) == 2


def test_the_command_ends_where_the_device_never_answers(tmp_path: Path) -> None:
    """Exit code 8: the device does not answer, whatever process asks."""
    orders, pids = tmp_path / "orders", tmp_path / "pids"
    orders.write_text("strike always")
    words = [sys.executable, "-m", "autofit", "tune", TARGET, "--arg", f"orders={orders}", "--arg", f"pids={pids}"]
    words += ["--device", "cuda", "--memory", "4GiB", "--strategies", "batching", "-o", str(tmp_path / "plan.yaml")]
    words += ["--study", str(tmp_path / "study.db"), "--quiet"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 8, ended.stderr
    assert "the device answers every call with an error" in ended.stderr
    assert not (tmp_path / "plan.yaml").exists()


@pytest.mark.parametrize(
    ("status", "expected"),
    [(3, Status.OUT_OF_MEMORY), (13, Status.AMBIGUOUS), (1, Status.AMBIGUOUS)],
    ids=["ALLOC_FAILED", "EXECUTION_FAILED", "NOT_INITIALIZED"],
)
@pytest.mark.fault("F09")
def test_a_product_that_fails_is_no_poison(status: int, expected: Status, device: Device, phantom: Phantom) -> None:
    """cuBLAS allocates for itself: what it says when it cannot is known by its text."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if live:
            phantom.fail_gemm(live.pop())
        loss: torch.Tensor = model(batch[0]).square().mean()
        return loss

    live: list[int] = []
    # With a bias torch would try another product: it recovers from the first one's failure by itself.
    workload = Workload(nn.Linear(4, 64, bias=False).cuda(), rows(), step_fn=step, optimizer=adam)
    with LocalBench(workload, device, BATCHING) as bench:
        live.append(status)
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is expected, outcome
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    assert torch.cuda.memory_allocated() < 64 * MIB
