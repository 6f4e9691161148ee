"""Attention: what is offered, that transformers models compute the same, and that nothing is left behind."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autofit
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.attention import Attention
from autofit.strategies.base import Facts, Numerics, Offer
from autofit.tracing.rehearsal import rehearse
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload

STRATEGY = Attention()
HOST = torch.device("cpu")
SDPA, FLASH = (Plan(values={"attention": value}) for value in ("sdpa", "flash"))
HOPPER = frozenset({"cudnn_attention"})
TOKENS, WORDS = 12, 50


def facts_of(
    model: nn.Module,
    batch: Any,
    rule: LossRule,
    capabilities: frozenset[str] = frozenset(),
    numerics: Numerics = "mixed",
) -> Facts:
    return Facts(
        model=model, batch=batch, optimizer=None, device_type="cpu", capabilities=capabilities, numerics=numerics,
        training=True, micro_batch_size=2,
        rehearse=partial(rehearse, Workload(model, [batch]), rule, Counted(batch, 2)),
    )  # fmt: skip


def offer(model: nn.Module, batch: Any = None, **options: Any) -> Offer:
    batch = words() if batch is None else batch
    return STRATEGY.offer(facts_of(model, batch, resolve_loss(model, batch), **options))


def words() -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def gpt2(implementation: str = "eager", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, use_cache=False,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, attn_implementation=implementation, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert(implementation: str = "eager") -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=implementation,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


class Attending(nn.Module):
    """A hand-written layer that calls `scaled_dot_product_attention`."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.mix, self.masked = nn.Linear(16, 48), masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.masked else None
        return F.scaled_dot_product_attention(query, key, value, mask).mean((1, 2))


NUMBERS = (torch.randn(2, 6, 16), torch.zeros(2, 8))


@pytest.mark.parametrize("make", [gpt2, bert])
def test_eager_model_is_offered_sdpa(make: Any) -> None:
    (knob,) = offer(make()).knobs
    assert (knob.values, knob.default) == (("default", "sdpa"), "default")


def test_model_on_sdpa_gets_nothing_to_try_on_a_cpu() -> None:
    found = offer(gpt2("sdpa"))
    assert not found.knobs
    assert "no other fused kernel on this device" in found.refused[0].reason
    assert found.refused[0].origin == "device"


def test_flash_is_offered_where_torch_would_run_cudnn_and_math_never() -> None:
    found = offer(Attending(), NUMBERS, capabilities=HOPPER)
    assert [knob.values for knob in found.knobs] == [("default", "flash")]
    assert [refusal.name for refusal in found.refused] == ["attention=math"]


def test_attention_inside_a_layer_of_torch_is_seen() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(96, 8))
    assert offer(model, NUMBERS, capabilities=HOPPER).knobs
    assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("model", "numerics", "text"),
    [
        (nn.Sequential(nn.Linear(16, 8), nn.Flatten(), nn.Linear(48, 8)), "mixed", "does not call scaled_dot_product"),
        (Attending(masked=True), "mixed", "they need no mask"),
        (Attending(), "exact", "computed in float32"),
    ],
    ids=["no attention", "masked", "float32"],
)
def test_flash_is_refused_where_it_would_not_run(model: nn.Module, numerics: Numerics, text: str) -> None:
    found = offer(model, NUMBERS, capabilities=HOPPER, numerics=numerics)
    assert not found.knobs
    assert text in found.refused[0].reason


@pytest.mark.filterwarnings("ignore")
def test_model_that_returns_its_weights_stays_eager() -> None:
    config = offer(gpt2(output_attentions=True))
    asked = offer(gpt2(), {**words(), "output_attentions": True})
    model, batch = gpt2(), words()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(**batch, output_attentions=True)
        result: torch.Tensor = output.loss + output.attentions[0].square().mean()
        return result

    called = STRATEGY.offer(facts_of(model, batch, LossRule("step_fn", loss, False, "")))
    for found in (config, asked, called):
        assert not found.knobs
        assert "output_attentions=True needs the attention weights" in found.refused[0].reason


def test_model_without_support_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2()
    monkeypatch.setattr(type(model), "_supports_sdpa", False)
    assert "GPT2LMHeadModel does not support" in offer(model).refused[0].reason
    with pytest.raises(SpaceError, match="does not support"), STRATEGY.apply(SDPA, draft_of(model)):
        pass


def test_model_that_cannot_be_switched_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    assert "pass attn_implementation='sdpa' when making it" in offer(model).refused[0].reason


def draft_of(model: nn.Module, rule: LossRule | None = None) -> Draft:
    rule = rule or LossRule("step_fn", lambda model, batch: model(**batch).loss, False, "")
    return Draft(model, rule, torch.optim.SGD(model.parameters(), lr=0.1), HOST)


def test_plan_for_a_model_that_is_not_eager_is_an_error() -> None:
    with (
        pytest.raises(SpaceError, match="no transformers model here has"),
        STRATEGY.apply(SDPA, draft_of(gpt2("sdpa"))),
    ):
        pass


class Count(torch.overrides.TorchFunctionMode):
    """Counts the calls of `scaled_dot_product_attention`."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [gpt2, bert])
def test_switched_model_computes_the_same_with_the_fused_kernel_and_is_put_back(make: Any) -> None:
    model = make()
    plain = copy.deepcopy(model)
    before = {name: dict(vars(part.config)) for name, part in model.named_modules() if hasattr(part, "config")}
    for _ in range(2):
        model.zero_grad()
        with Count() as count, prepare(SDPA, draft_of(model), members()) as step:
            loss = step.backward(StepBatch.alike([words()]))
        assert count.calls == 2
        after = {name: dict(vars(part.config)) for name, part in model.named_modules() if hasattr(part, "config")}
        assert after == before
    expected = prepare(Plan(), draft_of(plain), []).backward(StepBatch.alike([words()]))
    torch.testing.assert_close(loss, expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_model_inside_another_is_switched_too() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = gpt2()

        def forward(self, **batch: torch.Tensor) -> Any:
            return self.inner(**batch)

    model = Wrapped()
    assert offer(model).knobs
    with STRATEGY.apply(SDPA, draft_of(model)):
        assert model.inner.config._attn_implementation == "sdpa"
    assert model.inner.config._attn_implementation == "eager"


@pytest.mark.parametrize("own", [True, False])
def test_flash_excludes_cudnn_until_it_is_undone(own: bool) -> None:
    flags: Any = torch.backends.cuda
    before = flags.cudnn_sdp_enabled()
    flags.enable_cudnn_sdp(own)
    try:
        with STRATEGY.apply(FLASH, draft_of(Attending())):
            assert not flags.cudnn_sdp_enabled()
            assert flags.flash_sdp_enabled()
        assert flags.cudnn_sdp_enabled() is own
    finally:
        flags.enable_cudnn_sdp(before)


@pytest.mark.slow
def test_search_tries_sdpa_and_its_gate() -> None:
    model = gpt2(n_positions=256)
    tokens = torch.randint(0, WORDS, (8, 256))
    batches = [{"input_ids": tokens, "labels": tokens}]
    fit = autofit.tune(
        model, batches, strategies=["attention"], memory_budget="1GiB", time_budget="60s", device="cpu",
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )  # fmt: skip
    ran = [fit.plan, *(each.plan for each in fit.alternatives)]
    assert "sdpa" in {plan.values["attention"] for plan in ran}
    assert model.config._attn_implementation == "eager"
