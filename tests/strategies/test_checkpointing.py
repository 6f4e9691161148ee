"""Checkpointing: same training, fewer saved bytes, no trace."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autofit.core.errors import SpaceError
from autofit.core.plan import KnobValue, Plan
from autofit.strategies.checkpointable import CheckpointedForward
from autofit.workloads.step import StepBatch, TrainStep
from tests.strategies.repeated_blocks import (
    CASES,
    STRATEGY,
    Block,
    FlatNorm,
    Gpt,
    applied,
    draft_of,
    facts_of,
    fail,
    plan_of,
    saved_bytes,
    tokens,
    trace_of,
    trained,
)

# The same training.


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, -1])
@pytest.mark.fault("F47")
def test_training_is_the_same(name: str, count: int) -> None:
    make, batch = CASES[name]
    torch.manual_seed(0)
    model = make()
    most = int(STRATEGY.offer(facts_of(model)).knobs[0].values[-1])
    plain, checkpointed = trained(model, batch, 0), trained(model, batch, count % (most + 1))
    assert plain.keys() == checkpointed.keys()
    for key, value in plain.items():
        torch.testing.assert_close(checkpointed[key], value, msg=partial("{}: {}".format, key))


def test_training_is_the_same_under_autocast() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = model(batch).float().square().mean()
            return found

    model = Gpt()
    plain, checkpointed = trained(model, tokens(), 0, loss=loss), trained(model, tokens(), 4, loss=loss)
    for key, value in plain.items():
        torch.testing.assert_close(checkpointed[key], value, msg=key)


def test_training_is_the_same_with_accumulation_in_a_train_step() -> None:
    results = []
    model = Gpt(p=0.0)
    for count in (0, 4):
        trial = copy.deepcopy(model)
        draft = draft_of(trial)
        draft.optimizer = torch.optim.SGD(trial.parameters(), lr=0.1)
        step = TrainStep(plan=plan_of(count), draft=draft)
        with STRATEGY.apply(plan_of(count), draft):
            losses = [step(StepBatch.of(torch.split(tokens(), 2))) for _ in range(2)]
        results.append((torch.stack(losses), trial.state_dict()))
    torch.testing.assert_close(results[0], results[1])


def test_a_list_that_a_block_extends_is_the_callers_own() -> None:
    class Logging(Block):
        def forward(self, x: Tensor, log: list[Tensor]) -> Tensor:  # type: ignore[override]  # it takes a list too
            log.append(x.mean())
            return super().forward(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Logging(), Logging()])

        def forward(self, x: Tensor) -> Tensor:
            log: list[Tensor] = []
            for block in self.blocks:
                x = block(x, log)
            assert len(log) == 2
            return x * torch.stack(log).sum()

    model, batch = Net(), torch.linspace(-1, 1, 16).reshape(2, 8)
    torch.testing.assert_close(trained(model, batch, 2), trained(model, batch, 0))


def test_a_list_argument_that_the_caller_extends_is_seen_as_it_was() -> None:
    class Dense(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(width, 4), nn.Tanh()

        def forward(self, features: list[Tensor]) -> Tensor:
            output: Tensor = self.act(self.linear(torch.cat(features, 1)))
            return output

    class DenseNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Dense(4 * depth) for depth in (1, 2, 3)])

        def forward(self, x: Tensor) -> Tensor:
            features = [x]
            for layer in self.layers:
                features.append(layer(features))
            return torch.cat(features, 1)

    model, batch = DenseNet(), torch.linspace(-1, 1, 8).reshape(2, 4)
    plain, checkpointed = trained(model, batch, 0), trained(model, batch, 3)
    torch.testing.assert_close(checkpointed, plain)


# It does what it says.


@pytest.mark.parametrize("name", ["gpt", "nested sequential", "resnet", "spectral norm"])
def test_saved_bytes_fall_with_each_block(name: str) -> None:
    make, batch = CASES[name]
    model = make()
    most = int(STRATEGY.offer(facts_of(model)).knobs[0].values[-1])
    saved = []
    for count in range(most + 1):
        with applied(model, count):
            saved.append(saved_bytes(model, batch))
    assert all(more > less for more, less in pairwise(saved)), saved


def test_each_block_runs_twice_in_training_and_once_otherwise() -> None:
    model = Gpt()
    calls: list[str] = []
    model.get_submodule("blocks.0.up").register_forward_hook(lambda *_: calls.append("inner"))
    model.blocks[0].register_forward_hook(lambda *_: calls.append("outer"))
    with applied(model, 1):
        model(tokens()).sum().backward()
        # The block's own hook is outside, so it runs once.
        assert calls == ["inner", "outer", "inner"]
        for quiet in (torch.no_grad, torch.inference_mode):
            calls.clear()
            with quiet():
                model(tokens())
            assert calls == ["inner", "outer"]
        model.eval()
        assert saved_bytes(model, tokens()) > 0
        assert calls == ["inner", "outer"] * 2


# No trace.


@pytest.mark.parametrize("name", CASES)
def test_everything_is_put_back(name: str) -> None:
    make, batch = CASES[name]
    model = make().train()
    model.register_forward_hook(lambda *_: None)
    before, state = trace_of(model), {key: value.clone() for key, value in model.state_dict().items()}
    most = STRATEGY.offer(facts_of(model)).knobs[0].values[-1]
    with applied(model, most):
        assert trace_of(model) != before
    assert trace_of(model) == before
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    model(batch).sum().backward()


def test_an_exception_inside_undoes_too() -> None:
    model = Gpt()
    before = trace_of(model)
    with pytest.raises(RuntimeError, match="injected"), applied(model, 4):
        fail()
    assert trace_of(model) == before


# What is offered and what is refused.


@pytest.mark.parametrize(
    ("blocks", "values"),
    [(2, (0, 1, 2)), (3, (0, 1, 2, 3)), (4, (0, 1, 2, 3, 4)), (6, (0, 2, 3, 5, 6)), (24, (0, 6, 12, 18, 24))],
)
def test_offers_quarters_of_the_blocks(blocks: int, values: tuple[int, ...]) -> None:
    (knob,) = STRATEGY.offer(facts_of(Gpt(blocks))).knobs
    assert (knob.name, knob.values, knob.default) == ("checkpointed_blocks", values, 0)


def compiled() -> nn.Module:
    model = Gpt()
    model.blocks[1].compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("model", "training", "reason"),
    [
        (Gpt(), False, "inference has no backward"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), True, "no repeated blocks; expected"),
        (compiled(), True, "compiled"),
        (torch.compile(Gpt(), backend="eager"), True, "compiled"),
    ],
    ids=["inference", "no blocks", "compiled block", "compiled"],
)
def test_refuses_with_a_reason(model: nn.Module, training: bool, reason: str) -> None:
    offer = STRATEGY.offer(facts_of(model, training))
    assert offer.knobs == ()
    assert offer.refused[0].name == "checkpointing"
    assert reason in offer.refused[0].reason


@pytest.mark.parametrize("count", [5, -1, True, "all"])
def test_a_number_of_blocks_that_the_model_does_not_have_is_an_error(count: KnobValue) -> None:
    with pytest.raises(SpaceError, match=r"checkpointed_blocks=.*expected one of 0, 1, 2, 3, 4\..*Tune again"):
        applied(Gpt(), count)


def test_a_plan_for_a_model_that_must_be_left_alone_is_an_error() -> None:
    with pytest.raises(SpaceError, match="expected 0, since the model"):
        applied(compiled(), 2)


def test_applying_twice_is_an_error() -> None:
    model = Gpt()
    with applied(model, 2), pytest.raises(SpaceError, match="already uses checkpointing"):
        applied(model, 2)


@pytest.mark.parametrize("plan", [Plan(), plan_of(0), Plan(values={"micro_batch_size": 4})])
def test_a_plan_that_asks_for_nothing_changes_nothing(plan: Plan) -> None:
    model = nn.Linear(2, 2)
    before = trace_of(model)
    with STRATEGY.apply(plan, draft_of(model)):
        assert trace_of(model) == before


def test_no_conflicts() -> None:
    assert STRATEGY.conflict(plan_of(4)) is None


# Models with a checkpointing method of their own.


class AllOrNothing(Gpt):
    """A model in the style of transformers 4.35: one flag for all blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[object] = []

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        self.log.append(("enable", gradient_checkpointing_kwargs))
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.log.append("disable")
        self.gradient_checkpointing = False


def test_a_model_with_one_flag_for_all_offers_none_or_all() -> None:
    own = AllOrNothing()
    model = nn.Sequential(own)
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == (0, 4)
    with pytest.raises(SpaceError, match="expected one of 0, 4"):
        applied(model, 2)
    before = trace_of(model)
    with applied(model, 4):
        assert vars(own)["gradient_checkpointing"] is True
        assert not any(isinstance(vars(block).get("forward"), CheckpointedForward) for block in own.blocks)
    assert own.log == [("enable", {"use_reentrant": False}), "disable"]
    assert trace_of(model) == before


def test_a_method_that_fails_leaves_no_trace() -> None:
    class Broken(AllOrNothing):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
            super().gradient_checkpointing_enable()
            raise ValueError("injected")

    model = Broken()
    before = trace_of(model)
    with pytest.raises(ValueError, match="injected"), applied(model, 4):
        pass
    assert trace_of(model) == before


def tiny_gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_implementation="sdpa"))


def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32))


def tiny_bert() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=32))


def tiny_t5() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_layers": 2, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "vocab_size": 32}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


HF: dict[str, tuple[Callable[[], Any], int]] = {
    "gpt2": (tiny_gpt2, 3),
    "llama": (tiny_llama, 3),
    "bert": (tiny_bert, 3),
    "t5": (tiny_t5, 4),
}


def hf_loss(model: nn.Module, batch: Tensor) -> Tensor:
    labels = batch[:, 0] % 2 if type(model).__name__.startswith("Bert") else batch
    loss: Tensor = model(input_ids=batch, labels=labels).loss
    return loss


@pytest.mark.parametrize("name", HF)
def test_transformers_models_train_the_same_with_fewer_saved_bytes(name: str) -> None:
    make, blocks = HF[name]
    torch.manual_seed(0)
    model, batch = make().train(), tokens()
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == tuple(range(blocks + 1))
    plain = trained(model, batch, 0, steps=1, loss=hf_loss)
    for count in (1, blocks):
        torch.testing.assert_close(trained(model, batch, count, steps=1, loss=hf_loss), plain)
    saved = []
    for count in range(blocks + 1):
        with applied(model, count):
            saved.append(saved_bytes(model, batch, hf_loss))
    assert all(more > less for more, less in pairwise(saved)), saved


@pytest.mark.parametrize("name", HF)
def test_transformers_models_are_put_back(name: str) -> None:
    make, blocks = HF[name]
    model = make().train()
    model.config.use_cache = True
    before = trace_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        with applied(model, blocks):
            assert trace_of(model) != before
            assert sum(getattr(m, "gradient_checkpointing", False) is True for m in model.modules()) >= blocks
    assert trace_of(model) == before


def test_a_transformers_model_inside_the_users_own_module_is_found() -> None:
    model = nn.Sequential(tiny_bert())
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == (0, 1, 2, 3)


def test_a_batch_norm_inside_a_transformers_layer_is_updated_once() -> None:
    model = tiny_bert().train()
    for layer in model.bert.encoder.layer:
        layer.output.dense = nn.Sequential(layer.output.dense, FlatNorm(16))
    plain = trained(model, tokens(), 0, steps=1, loss=hf_loss)
    checkpointed = trained(model, tokens(), 3, steps=1, loss=hf_loss)
    statistics = [key for key in plain if "running" in key or "tracked" in key]
    assert len(statistics) == 9
    assert all(torch.equal(checkpointed[key], plain[key]) for key in statistics)
