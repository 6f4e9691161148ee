"""Precision: what is offered, what it computes in, and that nothing of it stays."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.base import Facts, Offer
from autofit.strategies.precision import Precision
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft
from autofit.workloads.update import rule_of_update
from tests.workloads import gans

EVERYTHING = frozenset({"bf16", "fp16", "tf32"})
RULE = LossRule("step_fn", lambda model, batch: model(batch).float().square().mean(), False, "")


def facts(model: nn.Module | None = None) -> Facts:
    return Facts(
        model=model or nn.Linear(4, 4),
        batch=torch.zeros(2, 4),
        optimizer=None,
        device_type="cpu",
        capabilities=EVERYTHING,
        numerics="mixed",
        training=True,
        micro_batch_size=2,
    )


def draft(training: bool = True, device: str = "cpu") -> Draft:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if training else None
    return Draft(model, RULE, optimizer, torch.device(device))


def plan(value: str) -> Plan:
    return Plan(values={"precision": value})


def only_reason(offer: Offer) -> str:
    assert offer.knobs == ()
    assert [refusal.name for refusal in offer.refused] == ["precision"]
    return offer.refused[0].reason


MATMUL: Any = torch.backends.cuda.matmul
CUDA: Any = torch.backends.cudnn
GENERAL: Any = torch.backends


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts back the settings that can be unset again; those of cuDNN's operations cannot, so they are not touched."""
    yield
    for setting in (GENERAL, CUDA, MATMUL):
        setting.fp32_precision = "none"


def test_offers_what_the_device_has() -> None:
    (knob,) = Precision().offer(facts()).knobs
    assert (knob.values, knob.default) == (("fp32", "tf32", "bf16", "fp16"), "fp32")
    offer = Precision().offer(replace(facts(), capabilities=frozenset({"bf16"})))
    assert offer.knobs[0].values == ("fp32", "bf16")
    assert {refusal.name for refusal in offer.refused} == {"precision=tf32", "precision=fp16"}


def test_device_without_any_gets_no_knob_but_reasons() -> None:
    offer = Precision().offer(replace(facts(), capabilities=frozenset()))
    assert offer.knobs == ()
    assert len(offer.refused) == 3
    assert all("does not compute in" in refusal.reason for refusal in offer.refused)


def test_exact_numerics_are_kept() -> None:
    assert "exact" in only_reason(Precision().offer(replace(facts(), numerics="exact")))


def test_own_dtype_is_the_users_choice() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    assert "parameter 1.weight is torch.bfloat16" in only_reason(Precision().offer(facts(model)))


def test_active_autocast_is_the_users_choice() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast is already active" in only_reason(Precision().offer(facts()))


def test_tf32_that_is_on_is_not_offered_twice(restored: None) -> None:
    MATMUL.fp32_precision = "tf32"
    offer = Precision().offer(facts())
    assert offer.knobs[0].values == ("fp32", "bf16", "fp16")
    assert "already on" in offer.refused[0].reason


@pytest.mark.parametrize(("value", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_linear_computes_in_the_reduced_format_with_float32_weights(value: str, dtype: torch.dtype) -> None:
    made, seen = draft(), []
    made.model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with prepare(plan(value), made, [Precision()]) as step:
        step(torch.randn(2, 4))
        step(torch.randn(2, 4))
    assert seen == [dtype, dtype]
    assert all(parameter.dtype == torch.float32 for parameter in made.model.parameters())
    assert not torch.is_autocast_enabled("cpu")
    assert (made.autocast, made.scaler) == (nullcontext, None)


def test_each_forward_gets_an_autocast_of_its_own() -> None:
    made = draft()
    with Precision().apply(plan("bf16"), made):
        assert made.autocast() is not made.autocast()
        assert made.scaler is None


def test_float16_scales_the_loss_and_takes_the_same_step() -> None:
    plain, scaled = draft(), draft()
    gradients: list[float] = []
    weight = scaled.model.get_parameter("weight")
    weight.register_hook(lambda gradient: gradients.append(gradient.abs().max().item()))  # type: ignore[no-untyped-call]  # torch has no types here
    batch = torch.randn(2, 4)
    prepare(Plan(), plain, [])(batch)
    with prepare(plan("fp16"), scaled, [Precision()]) as step:
        assert scaled.scaler is not None
        step(batch)
        assert gradients[0] > 1000  # scaled by 65536
    torch.testing.assert_close(plain.model.weight, scaled.model.weight, rtol=1e-2, atol=1e-3)


def test_float16_skips_steps_that_overflow_until_the_scale_has_fallen() -> None:
    made = draft()
    made.scaler = own = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    weight = made.model.get_parameter("weight")
    before = weight.detach().clone()
    with prepare(plan("fp16"), made, [Precision()]) as step:
        assert made.scaler is own
        step(torch.full((2, 4), 100.0))
        assert torch.equal(weight, before)
        assert own.get_scale() == 2.0**125
    assert made.scaler is own


def test_inference_needs_no_scaler() -> None:
    made = draft(training=False)
    with prepare(plan("fp16"), made, [Precision()]) as step:
        assert made.scaler is None
        step(torch.randn(2, 4))


def test_an_error_inside_undoes_too(restored: None) -> None:
    made = draft()
    with pytest.raises(KeyError), Precision().apply(plan("fp16"), made):
        raise KeyError
    with pytest.raises(KeyError), Precision().apply(plan("tf32"), draft(device="cuda")):
        raise KeyError
    assert (made.autocast, made.scaler) == (nullcontext, None)
    assert MATMUL.fp32_precision == "none"


@pytest.mark.parametrize("value", ["fp8", 1, True])
def test_unknown_value_is_turned_away(value: str | int) -> None:
    with pytest.raises(SpaceError, match="precision="), Precision().apply(Plan(values={"precision": value}), draft()):
        pass


def test_tf32_is_turned_away_where_there_is_none() -> None:
    with pytest.raises(SpaceError, match="CUDA only"), Precision().apply(plan("tf32"), draft(device="cpu")):
        pass


def test_device_without_autocast_is_turned_away() -> None:
    with pytest.raises(SpaceError, match="bf16"), Precision().apply(plan("bf16"), draft(device="meta")):
        pass


@pytest.mark.parametrize("own", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("cuda", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("general", ["none", "ieee", "tf32"])
def test_settings_for_products_are_put_back_at_every_level(general: str, cuda: str, own: str, restored: None) -> None:
    GENERAL.fp32_precision, CUDA.fp32_precision, MATMUL.fp32_precision = general, cuda, own
    before = everything_said_by_the_settings(general, cuda)
    with Precision().apply(plan("tf32"), draft(device="cuda")):
        assert [setting.fp32_precision for setting in (MATMUL, CUDA.conv, CUDA.rnn)] == ["tf32", "tf32", "tf32"]
    assert everything_said_by_the_settings(general, cuda) == before


def everything_said_by_the_settings(general: str, cuda: str) -> list[str]:
    """Reads the settings as they are, and as they follow when those above them change."""
    said = [setting.fp32_precision for setting in (GENERAL, CUDA, MATMUL, CUDA.conv, CUDA.rnn)]
    for value in ("ieee", "tf32"):
        GENERAL.fp32_precision = value
        said += [setting.fp32_precision for setting in (CUDA, MATMUL, CUDA.conv, CUDA.rnn)]
    GENERAL.fp32_precision = general
    for value in ("ieee", "tf32"):
        CUDA.fp32_precision = value
        said += [setting.fp32_precision for setting in (MATMUL, CUDA.conv, CUDA.rnn)]
    CUDA.fp32_precision = cuda
    return said


OLD_FLAGS = """
import os
import torch
from autofit.strategies.precision import _tf32
cuda, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
def old(read):
    try:
        return read()
    except RuntimeError:
        return "raises"
def older():
    return [old(torch.get_float32_matmul_precision), old(lambda: matmul.allow_tf32), old(lambda: cuda.allow_tf32)]
def said():
    found = older()
    for value in ("none", "ieee", "tf32", "none"):
        cuda.fp32_precision = value
        found += [matmul.fp32_precision, cuda.conv.fp32_precision, cuda.rnn.fp32_precision]
    return found
def check(setup, collides):
    exec(setup)
    before = said()
    with _tf32():
        assert matmul.fp32_precision == cuda.conv.fp32_precision == cuda.rnn.fp32_precision == "tf32"
        inside = older()
        assert ("raises" in inside) is collides, (setup, inside)
        assert collides or (inside[0] in ("high", "medium") and inside[1:] == [True, True]), (setup, inside)
    assert said() == before, (setup, said(), before)
"""

SETUPS = {
    "": False,
    "matmul.allow_tf32 = True": False,
    "matmul.allow_tf32 = True; matmul.allow_tf32 = False": False,
    "torch.set_float32_matmul_precision('medium')": False,
    "torch.set_float32_matmul_precision('highest')": False,
    "cuda.allow_tf32 = True": False,
    "cuda.allow_tf32 = False": False,
    "cuda.allow_tf32 = False; torch.set_float32_matmul_precision('high')": False,
    "cuda.allow_tf32 = False; torch.set_float32_matmul_precision('highest')": False,
    "cuda.conv.fp32_precision = 'ieee'": False,
    "matmul.fp32_precision = 'ieee'": False,
    "torch.backends.fp32_precision = 'ieee'": False,
    # The user has set the newer interface so that the older one raises an error, also without autofit.
    "matmul.fp32_precision = 'tf32'": True,
    "torch.backends.fp32_precision = 'tf32'": True,
}
"""What the user may have set, and whether the older interface raises an error even so."""


def test_both_interfaces_agree_in_the_step_and_read_the_same_afterwards() -> None:
    # In processes of their own: torch has no way to unset the older flags and cuDNN's.
    fork = "\nif not (child := os.fork()):\n    check({!r}, {})\n    os._exit(0)\nassert os.waitpid(child, 0)[1] == 0\n"
    script = OLD_FLAGS + "".join(fork.format(setup, collides) for setup, collides in SETUPS.items())
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_step_of_the_user_runs_under_autocast_without_a_cache_of_casts() -> None:
    """The cache would keep casts of the weights before the first of two updates."""
    made = gans.models()
    inputs, seen = torch.randn(8, gans.WIDTH), list[torch.Tensor]()

    def twice(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            found = made["critic"].get_submodule("0")(batch)
            seen.append(found.detach().clone())
            torch.autograd.backward(found.float().sum())
            optimizer.step()
        return seen[0].float().sum()

    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    step = Draft(made, rule_of_update(twice), optimizer, torch.device("cpu"))
    with prepare(plan("bf16"), step, (Precision(),)) as prepared:
        prepared(inputs)
    assert [each.dtype for each in seen] == [torch.bfloat16] * 2
    assert not torch.equal(*seen)
    assert not torch.is_autocast_enabled("cpu")


def test_float16_needs_a_scaler_inside_a_step_of_the_user() -> None:
    offer = Precision().offered(replace(facts(), update_fn=True))
    assert offer.knobs[0].values == ("fp32", "tf32", "bf16")
    reasons = {refusal.name: refusal.reason for refusal in offer.refused}
    assert "float16 needs a gradient scaler inside" in reasons["precision=fp16"]
    step = Draft(nn.Linear(4, 4), rule_of_update(gans.update), None, torch.device("cpu"))
    with pytest.raises(SpaceError, match="float16 needs a gradient scaler"):
        prepare(plan("fp16"), step, (Precision(),))


def test_on_an_accelerator_16_bits_are_expected_to_pay_and_on_a_host_only_a_probe_can_tell() -> None:
    (knob,) = Precision().offer(replace(facts(), on_host=False)).knobs
    expected = dict(zip(knob.values, knob.expected, strict=True))
    assert expected["fp32"] == 1 < expected["fp16"] <= expected["bf16"]
    assert all(most >= usual for most, usual in zip(knob.ceiling, knob.expected, strict=True))
    (knob,) = Precision().offer(facts()).knobs
    assert knob.expected == knob.ceiling == ()
