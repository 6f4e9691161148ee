"""`autofit.diagnose`: what it finds in a workload, on which batch, what it refuses, and that it leaves no trace."""

from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import devices
from autofit.doctor import findings
from autofit.doctor.diagnose import diagnose_workload
from autofit.doctor.diagnosis import Diagnosis, measured
from autofit.doctor.session import Scope
from autofit.torch_internals import top_saved_tensors_hook
from autofit.workloads.workload import Workload
from tests.digests import digest_of
from tests.doctor.cases import OF_SOME, ON_ACCELERATORS, of, unchecked
from tests.workloads import gans

WIDTH, BATCH = 1024, 256


def make(batch_size: int = BATCH, samples: int = 1024) -> tuple[nn.Module, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 16))
    data = TensorDataset(torch.randn(samples, 16), torch.randint(16, (samples,)))
    return model, DataLoader(data, batch_size, shuffle=True)


def kinds(found: Diagnosis, *, minor: bool = False) -> list[str]:
    return [each.id for each in found.findings if minor or not each.minor]


def test_good_code_has_no_finding_and_everything_is_as_before() -> None:
    model, loader = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.eval()
    before = digest_of(model, optimizer, loader)
    found = autofit.diagnose(model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, device="cpu")
    assert digest_of(model, optimizer, loader) == before
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert kinds(found, minor=True) == []
    assert (found.target, found.device_type, found.samples, found.steps) == ("Sequential", "cpu", BATCH, 6)
    assert found.notes == ()
    assert set(found.checked) | ON_ACCELERATORS | OF_SOME == {member.id for member in findings.members()}
    assert {each.id for each in found.unchecked} == ON_ACCELERATORS | OF_SOME
    assert 0 < found.peak_bytes < found.budget_bytes
    assert str(found).startswith("Sequential: watched 6 steps of 256 samples on ")


def test_what_a_step_function_keeps_is_found_with_its_holder() -> None:
    model, loader = make()
    kept = []

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        hidden: torch.Tensor = model[0](batch[0])  # type: ignore[index]  # the sequence above
        kept.append(hidden.detach())
        return F.cross_entropy(model[2](hidden), batch[1])  # type: ignore[index]

    found = autofit.diagnose(model, loader, step_fn=step_fn, device="cpu")
    (finding,) = [each for each in found.findings if not each.minor]
    assert finding.id == "grows"
    assert finding.size is not None
    assert finding.size.bytes_per_step == BATCH * WIDTH * 4
    assert finding.places[0].holder.startswith("`kept[")
    assert "in the closure of step_fn" in finding.places[0].holder


KEPT: list[torch.Tensor] = []


def keeps_in_a_global(model: nn.Module, batch: Any) -> torch.Tensor:
    KEPT.append(model[0](batch[0]).detach())  # type: ignore[index]
    return F.cross_entropy(model(batch[0]), batch[1])


class Keeping(nn.Module):
    """Keeps a tensor in a global variable in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make()[0]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        KEPT.append(self.layers[0](inputs).detach())  # type: ignore[index]
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


@pytest.mark.parametrize("by", ["step_fn", "forward"])
def test_a_global_of_the_users_module_is_a_holder_although_no_function_of_it_runs(by: str) -> None:
    model, loader = make()
    named: dict[str, Any] = {"step_fn": keeps_in_a_global} if by == "step_fn" else {"loss_fn": F.cross_entropy}
    try:
        found = in_another_file(model if by == "step_fn" else Keeping(), loader, named)
    finally:
        KEPT.clear()
    (finding,) = [each for each in found.findings if not each.minor]
    assert finding.id == "grows"
    assert finding.places[0].holder.startswith("`KEPT[")


def in_another_file(model: nn.Module, loader: Any, named: dict[str, Any]) -> Diagnosis:
    """Calls `diagnose` from code that is not the user's, as the command line does."""
    code = "import autofit\ndef call(*given, **named): return autofit.diagnose(*given, **named)"
    scope: dict[str, Any] = {}
    exec(compile(code, "<frozen tests>", "exec"), scope)
    found: Diagnosis = scope["call"](model, loader, device="cpu", **named)
    return found


def test_a_gan_is_diagnosed_by_its_update_function_and_restored() -> None:
    workload = gans.workload()
    before = digest_of(workload.model, workload.optimizer, workload.loader)
    found = diagnose_workload(workload, devices.host(), "a GAN")
    assert digest_of(workload.model, workload.optimizer, workload.loader) == before
    dropped = [each for each in found.findings if each.id == "gradient-dropped"]
    assert [each.places[0].line.rpartition("/")[2].partition(":")[0] for each in dropped] == ["gans.py"]
    assert "critic" in dropped[0].what
    assert found.samples == 8


def large_models() -> nn.ModuleDict:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512))
    return nn.ModuleDict({"generator": generator, "critic": nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 1))})


def trained_in_turn(graph: bool, made: nn.ModuleDict, each: Any, batch: Any) -> Any:
    noise = torch.randn(512, 16)
    with torch.set_grad_enabled(graph):
        fake = made["generator"](noise)
    each["critic"].zero_grad()
    judged = made["critic"](fake).mean()
    torch.autograd.backward(judged)
    each["critic"].step()
    del fake
    made["critic"].requires_grad_(False)
    fooled = made["critic"](made["generator"](noise)).mean().neg()
    each["generator"].zero_grad()
    torch.autograd.backward(fooled)
    made["critic"].requires_grad_(True)
    each["generator"].step()
    return {"critic": judged.detach(), "generator": fooled.detach()}


def test_the_size_is_that_of_the_correction_where_the_steps_that_can_be_run_save_less() -> None:
    found = []
    for graph in (True, False):
        made = large_models()
        given: dict[str, Any] = {"update_fn": partial(trained_in_turn, graph), "optimizer": gans.optimizers(made)}
        found.append(diagnose_workload(Workload(made, gans.loader(), **given), devices.host(), "a GAN"))
    bad, good = found
    assert not [each for each in good.findings if each.id == "gradient-dropped"]
    [dropped] = [each for each in bad.findings if each.id == "gradient-dropped"]
    assert dropped.size is not None
    assert (dropped.size.basis, dropped.size.bound) == ("replayed", "")
    assert "with inputs= that leave these parameters out" in dropped.confirmed
    assert dropped.size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)


def test_a_gan_that_freezes_its_critic_drops_no_gradient() -> None:
    def update(made: nn.ModuleDict, each: Any, batch: Any) -> Any:
        fake = made["generator"](torch.randn(len(batch[0]), gans.NOISE))
        judged = F.softplus(-made["critic"](batch[0])).mean() + F.softplus(made["critic"](fake.detach())).mean()
        each["critic"].zero_grad()
        torch.autograd.backward(judged)
        each["critic"].step()
        made["critic"].requires_grad_(False)
        fooled = F.softplus(-made["critic"](fake)).mean()
        each["generator"].zero_grad()
        torch.autograd.backward(fooled)
        each["generator"].step()
        made["critic"].requires_grad_(True)
        return judged

    found = diagnose_workload(gans.workload(update_fn=update), devices.host(), "a GAN")
    assert kinds(found, minor=True) == []


def test_of_a_global_batch_two_micro_batches_are_accumulated() -> None:
    model, loader = make()
    one = autofit.diagnose(model, loader, loss_fn=F.cross_entropy, device="cpu")
    four = autofit.diagnose(model, loader, loss_fn=F.cross_entropy, global_batch_size=4 * BATCH, device="cpu")
    assert (one.samples, four.samples) == (BATCH, 2 * BATCH)
    assert four.peak_bytes == pytest.approx(one.peak_bytes, rel=0.2)
    assert kinds(four, minor=True) == []


class _Slow(torch.autograd.Function):
    """A product that takes 10 ms, and another 10 ms for the gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        sleep(0.01)
        ctx.save_for_backward(given)
        return given * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        sleep(0.01)
        return None, (gradient * ctx.saved_tensors[0]).sum(0)


class _SlowBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(64)), nn.Linear(64, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(_Slow.apply(inputs, self.weight))  # type: ignore[no-untyped-call]
        return out


def test_the_time_of_a_change_is_that_of_the_correction_in_the_code() -> None:
    model = _SlowBody()
    loader = DataLoader(TensorDataset(torch.randn(64, 64), torch.randint(4, (64,))), batch_size=16)
    named: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD(model.head.parameters(), 0.1)}
    (finding,) = of(autofit.diagnose(model, loader, device="cpu", **named), "gradient-without-optimizer")
    assert finding.speed is not None
    assert finding.speed.low < finding.speed.value < finding.speed.high
    assert finding.speed.value == pytest.approx(2, rel=0.2), "of 20 ms, 10 are left"
    assert f"{finding.speed.value:.2f}x as fast" in measured(finding)
    model.weight.requires_grad_(False)
    assert of(autofit.diagnose(model, loader, device="cpu", **named), "gradient-without-optimizer") == []


def test_only_the_chosen_kinds_are_looked_for() -> None:
    model, loader = make()
    workload = autofit.Workload(model, loader, loss_fn=F.cross_entropy)
    found = diagnose_workload(workload, devices.host(), "t", Scope(findings.chosen(["retain-graph"])))
    assert found.checked == ("retain-graph",)


def test_a_workload_for_inference_is_refused() -> None:
    model, loader = make()
    workload = autofit.Workload(model, loader, mode="inference")
    with pytest.raises(autofit.WorkloadError, match=r"expected a training.*autofit\.watch\(loader\)"):
        diagnose_workload(workload, devices.host(), "t")


def test_a_step_with_functional_transforms_is_watched() -> None:
    model, loader = make()

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        weights = dict(model.named_parameters())
        penalty = torch.func.grad(lambda scale: (scale * weights["0.weight"].detach()).sum())(torch.tensor(1.0))
        loss: torch.Tensor = F.cross_entropy(model(batch[0]), batch[1]) + penalty
        return loss

    optimizer = torch.optim.AdamW(model.parameters())
    before = digest_of(model, optimizer, loader)
    found = autofit.diagnose(model, loader, step_fn=step_fn, optimizer=optimizer, device="cpu")
    assert digest_of(model, optimizer, loader) == before
    assert (found.steps, unchecked(found)) == (6, [])
    assert kinds(found) == []


def test_a_step_that_refuses_hooks_is_watched_without_what_autograd_saves() -> None:
    model, loader = make()

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        if top_saved_tensors_hook() is not None:
            raise RuntimeError("this operator does not support saved tensor hooks")
        loss: torch.Tensor = F.cross_entropy(model(batch[0]), batch[1])
        return loss

    optimizer = torch.optim.AdamW(model.parameters())
    before = digest_of(model, optimizer, loader)
    found = autofit.diagnose(model, loader, step_fn=step_fn, optimizer=optimizer, device="cpu")
    assert digest_of(model, optimizer, loader) == before
    assert unchecked(found) == ["saved-unused"]
    assert found.steps == 6
    assert kinds(found) == []
    assert (
        "not checked, because the step uses torch.func, which refuses hooks on saved tensors: saved-unused"
        in " ".join(str(found).split())
    )


def failing(at: int, error: Callable[[], Exception]) -> Callable[[nn.Module, Any], torch.Tensor]:
    calls = []

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == at:
            raise error()
        loss: torch.Tensor = F.cross_entropy(model(batch[0]), batch[1])
        return loss

    return step_fn


def test_an_error_in_a_later_step_gives_what_was_found_until_then() -> None:
    model, loader = make()
    optimizer = torch.optim.AdamW(model.parameters())
    before = digest_of(model, optimizer, loader)
    step_fn = failing(6, lambda: ValueError("no more data"))
    found = autofit.diagnose(model, loader, step_fn=step_fn, optimizer=optimizer, device="cpu")
    assert digest_of(model, optimizer, loader) == before
    (note,) = found.notes
    assert note.endswith("failed: ValueError: no more data")
    assert found.failed
    assert 1 <= found.steps < 6
    assert f"note: {note}" in " ".join(str(found).split())


def test_an_error_in_the_first_step_is_the_users() -> None:
    model, loader = make()
    optimizer = torch.optim.AdamW(model.parameters())
    before = digest_of(model, optimizer, loader)
    with pytest.raises(autofit.UserCodeError, match="no data at all") as caught:
        autofit.diagnose(
            model, loader, step_fn=failing(1, lambda: ValueError("no data at all")), optimizer=optimizer, device="cpu"
        )
    assert "test_diagnose.py" in caught.value.traceback_text
    assert digest_of(model, optimizer, loader) == before


def test_an_interrupt_is_not_swallowed_and_leaves_no_trace() -> None:
    model, loader = make()
    before, backward = digest_of(model, None, loader), torch.autograd.backward
    with pytest.raises(KeyboardInterrupt):
        autofit.diagnose(model, loader, step_fn=failing(5, KeyboardInterrupt), device="cpu")  # type: ignore[arg-type]  # no Exception
    assert torch.autograd.backward is backward
    assert digest_of(model, None, loader) == before


def test_clipping_and_a_frozen_half_are_no_findings() -> None:
    model, loader = make()
    model[0].requires_grad_(False)  # type: ignore[index]
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    found = autofit.diagnose(
        model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, max_grad_norm=1.0, device="cpu"
    )
    assert kinds(found, minor=True) == []
