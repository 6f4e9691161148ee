"""Attention: what is offered, that transformers models compute the same, and that nothing is left behind."""

import copy
from dataclasses import replace
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
from autofit.strategies.base import Facts, Offer
from autofit.tracing.tracing import rehearse
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload

STRATEGY = Attention()
HOST = torch.device("cpu")
SDPA = Plan(values={"attention": "sdpa"})
TOKENS, WORDS = 12, 50


def facts_of(model: nn.Module, batch: Any, rule: LossRule) -> Facts:
    return Facts(
        model=model, batch=batch, optimizer=None, device_type="cpu", capabilities=frozenset(), numerics="mixed",
        training=True, micro_batch_size=2,
        rehearse=partial(rehearse, Workload(model, [batch]), rule, Counted(batch, 2)),
    )  # fmt: skip


def offer(model: nn.Module, batch: Any = None) -> Offer:
    batch = words() if batch is None else batch
    return STRATEGY.offer(facts_of(model, batch, resolve_loss(model, batch)))


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


@pytest.mark.parametrize("make", [gpt2, bert])
def test_eager_model_is_offered_sdpa(make: Any) -> None:
    (knob,) = offer(make()).knobs
    assert (knob.values, knob.default) == (("default", "sdpa"), "default")


@pytest.mark.parametrize("model", [partial(gpt2, "sdpa"), lambda: nn.Linear(16, 8)], ids=["sdpa", "no transformers"])
def test_model_without_plain_attention_is_refused(model: Any) -> None:
    facts = facts_of(gpt2(), words(), resolve_loss(gpt2(), words()))
    found = STRATEGY.offer(replace(facts, model=model()))
    assert not found.knobs
    assert "no transformers model here computes attention by plain products" in found.refused[0].reason


def test_a_step_without_attention_is_refused() -> None:
    model = gpt2()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        result: torch.Tensor = model.get_input_embeddings()(batch["input_ids"]).sum()  # type: ignore[operator]
        return result

    found = STRATEGY.offer(facts_of(model, words(), LossRule("step_fn", loss, False, "")))
    assert "does not call scaled_dot_product_attention" in found.refused[0].reason


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
