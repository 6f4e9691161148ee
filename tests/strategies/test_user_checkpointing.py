"""Models whose author has checkpointing switched on: left alone by default, switched off and put back by a plan."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as cp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError
from autofit.strategies.checkpointable import Checkpointable
from tests.strategies.repeated_blocks import (
    STRATEGY,
    Block,
    applied,
    facts_of,
    mean_loss,
    saved_bytes,
    trace_of,
    trained,
)

INPUTS = torch.linspace(-1, 1, 256).reshape(32, 8)


class Flagged(Block):
    """A block that checkpoints itself, as in many repositories."""

    def __init__(self) -> None:
        super().__init__()
        self.use_checkpoint = True

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # the block's other arguments are not needed
        inner = super().forward
        output: Tensor = cp.checkpoint(inner, x, use_reentrant=False) if self.use_checkpoint else inner(x)
        return output


class Whole(nn.Module):
    """A model with one flag, in the style of timm."""

    def __init__(self, **flags: Any) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.grad_checkpointing = True
        vars(self).update(flags)

    def forward(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing:
            output: Tensor = checkpoint_sequential(self.blocks, 4, x, use_reentrant=False)  # type: ignore[no-untyped-call]  # no types
            return output
        return self.blocks(x)  # type: ignore[no-any-return]  # nn.Module


class Configured(nn.Module):
    """A model whose flag is in its configuration, with a function under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"activation_checkpointing": True}
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = _again(block, x, use_reentrant=False) if self.config["activation_checkpointing"] else block(x)
        return x


_again = cp.checkpoint


def wrapped() -> nn.Module:
    model = nn.Sequential(*[Block() for _ in range(4)])
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


def flagged() -> nn.Module:
    return nn.Sequential(*[Flagged() for _ in range(4)])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "flag of a block": flagged, "flag of a model": Whole, "configuration": Configured, "wrapper": wrapped,
}  # fmt: skip
each_model = pytest.mark.parametrize("name", MODELS)


def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the newer name exists from 5.23 on only
        model.gradient_checkpointing_enable()
    return model.train()


def language_loss(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch).loss
    return loss


@each_model
def test_fewer_blocks_than_the_user_checkpoints_are_offered(name: str) -> None:
    (knob,) = STRATEGY.offer(facts_of(MODELS[name]())).knobs
    assert (knob.values, knob.default) == (("default", 0, 1, 2, 3), "default")
    assert knob.expected[1] > knob.expected[2] > knob.expected[4] > knob.expected[0] == 1
    assert knob.growth[1] > knob.growth[2] > knob.growth[4] > knob.growth[0] == 1


@each_model
def test_default_leaves_the_users_checkpointing_as_it_is(name: str) -> None:
    model = MODELS[name]()
    before = trace_of(model)
    with applied(model, "default"):
        assert trace_of(model) == before


@each_model
def test_each_number_of_blocks_trains_the_same_and_keeps_more(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    before, default = trace_of(model), saved_bytes(copy.deepcopy(model), INPUTS)
    kept = []
    for count in (0, 1, 3, 4, 0):
        with applied(model, count):
            kept.append(saved_bytes(copy.deepcopy(model), INPUTS))
        assert trace_of(model) == before
        torch.testing.assert_close(trained(model, INPUTS, count), trained(model, INPUTS, "default"))
    assert kept[0] > kept[1] > kept[2] > kept[3]
    assert kept[0] == kept[4] > 2 * default
    assert saved_bytes(model, INPUTS) == default


def test_a_transformers_model_is_switched_off_and_put_back() -> None:
    torch.manual_seed(0)
    model, batch = tiny_llama(), torch.arange(24).reshape(4, 6) % 16
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == ("default", 0, 1, 2)
    before, default = trace_of(model), saved_bytes(model, batch, language_loss)
    users = trained(model, batch, "default", steps=1, loss=language_loss)
    kept = []
    for count in (0, 1, 2, 3):
        torch.testing.assert_close(trained(model, batch, count, steps=1, loss=language_loss), users)
        with applied(model, count):
            kept.append(saved_bytes(model, batch, language_loss))
        assert trace_of(model) == before
    assert kept[0] > kept[1] > kept[2] > kept[3] == default


def test_a_flag_that_only_some_blocks_have_counts_those() -> None:
    model = flagged()
    vars(model.get_submodule("0"))["use_checkpoint"] = False
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == ("default", 0, 1, 2, 4)


def test_names_that_tell_of_something_else_are_no_flags() -> None:
    class Friend(Block):
        supports_gradient_checkpointing = True
        _can_checkpoint_with_cache = True

        def __init__(self) -> None:
            super().__init__()
            self.save_checkpoint = self.load_checkpoint = True

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # the block's other arguments are not needed
            if self.supports_gradient_checkpointing and self.save_checkpoint and self._can_checkpoint_with_cache:
                return super().forward(x)
            return cp.checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]  # no types

    assert Checkpointable(nn.Sequential(Friend(), Friend())).switches == ()


@pytest.mark.parametrize("flag", ["gradient_checkpointing", "grad_checkpointing", "with_cp", "use_checkpoint"])
def test_a_flag_is_known_by_its_name_wherever_it_is_read(flag: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([Block(), Block()]))
    setattr(model[1], flag, True)
    (switch,) = Checkpointable(model).switches
    assert (switch.module, switch.name) == (model[1], flag)


def test_settings_that_the_blocks_share_with_the_model_are_those_of_the_model() -> None:
    model = Configured()
    for block in model.blocks:
        vars(block)["config"] = model.config
    (switch,) = Checkpointable(model).switches
    assert switch.module is model
    (knob,) = STRATEGY.offer(facts_of(model)).knobs
    assert knob.values == ("default", 0, 1, 2, 3)  # the user checkpoints all 4


def test_a_flag_of_a_class_that_holds_the_settings_is_refused() -> None:
    model = flagged()
    vars(model)["config"] = type("Settings", (), {"use_checkpoint": True})
    (refusal,) = STRATEGY.offer(facts_of(model)).refused
    assert "which is not changed: use_checkpoint of Sequential cannot be set" in refusal.reason


@pytest.mark.parametrize("name", ["enable_checkpointing", "checkpoint", "do_checkpoint"])
def test_settings_about_saving_the_model_are_not_about_activations(name: str) -> None:
    model = nn.Linear(2, 2)
    vars(model)["args"] = {name: True}
    assert Checkpointable(model).switches == ()


def test_a_flag_that_cannot_be_set_is_refused_in_words() -> None:
    class Fixed(Block):
        @property
        def use_checkpoint(self) -> bool:
            return True

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # the block's other arguments are not needed
            inner = super().forward
            return cp.checkpoint(inner, x, use_reentrant=False) if self.use_checkpoint else inner(x)

    model = nn.Sequential(Fixed(), Fixed())
    (refusal,) = STRATEGY.offer(facts_of(model)).refused
    assert "already uses checkpointing, which is not changed" in refusal.reason
    assert "use_checkpoint of Fixed" in refusal.reason
    with pytest.raises(SpaceError, match="use_checkpoint of Fixed"):
        applied(model, 1)


def test_a_model_that_its_author_compiled_is_refused() -> None:
    model = flagged()
    model.get_submodule("0").compile(backend="eager")
    assert "the model is compiled" in STRATEGY.offer(facts_of(model)).refused[0].reason
    with pytest.raises(SpaceError, match="expected default, since the model is compiled"):
        applied(model, 0)


def test_a_search_recommends_none() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), *[nn.Sequential(Wide(), Wide()) for _ in range(3)])
    before = trace_of(model)
    fit = autofit.tune(
        model,
        DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16),
        step_fn=lambda model, batch: mean_loss(model, batch[0]),
        strategies=["checkpointing"],
        pinned={"checkpointed_blocks": 0},
        time_budget="60s",
        study=":memory:",
        progress=False,
        device="cpu",
    )
    assert fit.baseline.plan.values["checkpointed_blocks"] == "default"
    assert fit.plan.values["checkpointed_blocks"] == 0
    assert trace_of(model) == before


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.gradient_checkpointing = True

    def forward(self, x: Tensor) -> Tensor:
        if self.gradient_checkpointing and self.training:
            output: Tensor = cp.checkpoint(self.layers, x, use_reentrant=False)
            return output
        return self.layers(x)  # type: ignore[no-any-return]  # nn.Module
