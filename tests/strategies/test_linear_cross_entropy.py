"""The chunked loss as a strategy: when it is offered, the gradients of real language models, memory, and a search."""

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.memory.trace import Kind
from autofit.prepare import prepare
from autofit.probing.local_bench import LocalBench
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer
from autofit.strategies.linear_cross_entropy import LinearCrossEntropy
from autofit.tracing import tracing
from autofit.tracing.tracing import rehearse
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload
from tests.examples.loading import load

STRATEGY = LinearCrossEntropy()
HOST = torch.device("cpu")
CHUNKED, DEFAULT = (Plan(values={"linear_cross_entropy": value}) for value in ("chunked", "default"))
CLASSES, TOKENS = 2000, 12

Batch = dict[str, torch.Tensor]


class LanguageModel(nn.Module):
    """A small causal model that returns logits; `after` is done to them."""

    def __init__(self, classes: int = CLASSES, depth: int = 1, after: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(classes, 16), nn.Linear(16, 16)
        self.head, self.depth, self.after = nn.Linear(16, classes, bias=False), depth, after
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for _ in range(self.depth):
            hidden = torch.tanh(self.mix(hidden))
        logits: torch.Tensor = self.head(hidden)
        return logits if self.after is None else self.after(logits)


def next_token_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))


def mean_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


RULE = LossRule("step_fn", next_token_loss, False, "")


def facts_of(
    model: nn.Module, batch: Any = None, rule: LossRule = RULE, *, training: bool = True, seen: bool = True
) -> Facts:
    batch = torch.randint(0, 100, (2, TOKENS)) if batch is None else batch
    run = partial(rehearse, Workload(model, [batch]), rule, Counted(batch, 2))
    return Facts(
        model=model, batch=batch, optimizer=None, device_type="cpu", capabilities=frozenset(), numerics="exact",
        training=training, micro_batch_size=2, rehearse=run if seen else None,
    )  # fmt: skip


def reason(offer: Offer) -> str:
    assert not offer.knobs
    return offer.refused[0].reason


def test_model_whose_logits_are_most_of_the_activations_is_offered_chunks() -> None:
    (knob,) = STRATEGY.offer(facts_of(LanguageModel())).knobs
    assert (knob.values, knob.default) == (("default", "chunked"), "default")
    assert knob.growth[1] < 0.1


def test_offer_leaves_model_and_random_state_alone() -> None:
    model, state = LanguageModel(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    facts = facts_of(model, torch.zeros(2, TOKENS, dtype=torch.int64))
    state = torch.get_rng_state()
    STRATEGY.offer(facts)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "rule", "text"),
    [
        (LanguageModel(500), RULE, "no linear layer outside repeated blocks has 1024 or more outputs"),
        (LanguageModel(1100, 800), RULE, r"the logits are \d.\d% of the activations; chunks pay from 10% on"),
        (LanguageModel(after=lambda logits: torch.tanh(logits / 9)), RULE, "used by .*div.* before the loss"),
        (LanguageModel(), LossRule("step_fn", mean_loss, False, ""), "used by .*square.* before the loss"),
        (LanguageModel(after=lambda logits: logits.detach().requires_grad_()), RULE, "used by .*detach"),
    ],
    ids=["few classes", "small share", "capped logits", "another loss", "detached"],
)
def test_where_chunks_save_nothing_or_little_the_reason_says_so(model: nn.Module, rule: LossRule, text: str) -> None:
    found = reason(STRATEGY.offer(facts_of(model, rule=rule)))
    assert re.search(text, found), found


def test_inference_and_compiled_models_are_refused() -> None:
    model = LanguageModel()
    assert "computes no loss" in reason(STRATEGY.offer(facts_of(model, training=False)))
    assert "could not be inspected" in reason(STRATEGY.offer(facts_of(model, seen=False)))
    model.compile(backend="eager")
    assert "is compiled" in reason(STRATEGY.offer(facts_of(model)))


def test_step_that_needs_data_is_refused_with_the_place() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return next_token_loss(model, batch[:, : int(batch.max())])

    found = reason(STRATEGY.offer(facts_of(LanguageModel(), rule=LossRule("step_fn", loss, False, ""))))
    assert "cannot be run without data" in found
    assert "batch.max()" in found


def test_plan_for_a_model_without_a_head_is_an_error_with_what_was_expected() -> None:
    draft = Draft(LanguageModel(500), RULE, None, HOST)
    with pytest.raises(SpaceError, match="expected default, since no linear layer"), STRATEGY.apply(CHUNKED, draft):
        pass


def gradients(model: nn.Module, rule: LossRule, batch: Any, plan: Plan, precision: str) -> dict[str, torch.Tensor]:
    """Returns the loss and the gradients of one step of a copy; checks that nothing is left on it."""
    model = copy.deepcopy(model)
    draft = Draft(model, rule, torch.optim.SGD(model.parameters(), lr=0.1), HOST)
    torch.manual_seed(0)
    with prepare(Plan(values={**plan.values, "precision": precision}), draft, members()) as step:
        loss = step.backward(StepBatch.alike([batch]))
    assert not any("forward" in vars(module) for module in model.modules())
    return {"loss": loss} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check(model: nn.Module, rule: LossRule, batch: Any, precision: str) -> None:
    one, other = (gradients(model, rule, batch, plan, precision) for plan in (CHUNKED, DEFAULT))
    assert one.keys() == other.keys()
    for name, value in one.items():
        distance = (value - other[name]).norm()
        assert distance <= (1e-5 if precision == "fp32" else 1e-2) * other[name].norm() + 1e-6, name


SIZES: dict[str, Any] = {"vocab_size": CLASSES, "use_cache": False}


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SIZES, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
        )
    )


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=CLASSES, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
        )
    )


def t5() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            **SIZES, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0
        )
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [gpt2, llama, bert, t5])
def test_transformers_models_have_the_same_loss_and_gradients(make: Callable[[], nn.Module], precision: str) -> None:
    torch.manual_seed(0)
    model, tokens = make(), torch.randint(0, CLASSES, (4, TOKENS))
    labels = tokens.clone()
    labels[0, :5] = -100
    batch = {"input_ids": tokens, "labels": labels}
    rule = resolve_loss(model, batch)
    check(model, rule, batch, precision)
    assert STRATEGY.offer(facts_of(model, batch, rule)).knobs


def test_example_of_a_hand_written_model_has_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("gpt")
    monkeypatch.setattr(example, "VOCABULARY", CLASSES)
    torch.manual_seed(0)
    model = example.GPT(width=32, depth=2, heads=2)
    batch = example.collate([torch.randint(0, CLASSES, (length,)) for length in (8, 20, 11)])
    check(model, resolve_loss(model, batch), batch, "fp32")


def test_several_micro_batches_and_checkpointing_work_with_it() -> None:
    model = gpt2()
    tokens = torch.randint(0, CLASSES, (4, TOKENS))
    batch = {"input_ids": tokens, "labels": tokens}
    rule = resolve_loss(model, batch)
    plan: dict[str, Any] = {"linear_cross_entropy": "chunked", "checkpointed_blocks": 2}
    one = gradients(model, rule, batch, Plan(values={**plan, "accumulation_steps": 1}), "fp32")
    other = gradients(model, rule, batch, DEFAULT, "fp32")
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


def peak_bytes(plan: Plan) -> int:
    """Returns the peak of live activations and temporaries in a trace."""
    model, batch = LanguageModel(), torch.zeros(2, TOKENS, dtype=torch.int64)
    values: dict[str, Any] = {"micro_batch_size": 16, "accumulation_steps": 1, **plan.values}
    workload = Workload(model, [batch], optimizer=partial(torch.optim.SGD, lr=0.1))
    trace = tracing.trace(workload, RULE, Plan(values=values), Counted(batch, 2), HOST)
    counted = {Kind.ACTIVATION, Kind.TEMPORARY}
    live = peak = 0
    for event in trace.events:
        handle = max(event, ~event)
        if trace.tensors.kinds[handle] in counted:
            live += trace.tensors.sizes[handle] * (1 if event >= 0 else -1)
            peak = max(peak, live)
    return peak


def test_trace_shows_that_the_logits_are_never_whole() -> None:
    logits_bytes = 16 * (TOKENS - 1) * CLASSES * 4
    assert peak_bytes(DEFAULT) > 2 * logits_bytes
    assert peak_bytes(CHUNKED) < 0.5 * logits_bytes


@pytest.mark.slow
def test_search_takes_chunks_where_the_logits_do_not_fit() -> None:
    torch.manual_seed(0)
    model = LanguageModel(20_000)
    texts: Any = torch.randint(0, 20_000, (64, 33))
    loader: DataLoader[torch.Tensor] = DataLoader(texts, batch_size=32)
    fit = autofit.tune(
        model, loader, step_fn=next_token_loss, optimizer=partial(torch.optim.SGD, lr=0.1),
        strategies=["linear_cross_entropy"], memory_budget="100MiB", time_budget="60s", device="cpu",
    )  # fmt: skip
    assert fit.plan.values["linear_cross_entropy"] == "chunked"
    assert fit.plan.micro_batch_size == 32


LOSSES: list[torch.Tensor] = []
"""What the step of the next test keeps outside its model."""


def noted_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = next_token_loss(model, batch)
    LOSSES.append(loss.detach())
    return loss


def test_what_the_step_kept_of_its_inspection_is_gone_before_the_first_probe() -> None:
    workload = Workload(LanguageModel(), [torch.randint(0, CLASSES, (4, TOKENS))], step_fn=noted_loss)
    with LocalBench(workload, devices.choose("cpu"), Options(strategies=("linear_cross_entropy",))) as bench:
        assert [knob.name for knob in bench.briefing.space.knobs] == ["linear_cross_entropy"]
        assert LOSSES == []
