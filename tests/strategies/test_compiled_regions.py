"""Compiled regions: what is outside the blocks, and the loss, run compiled; the same training, and no trace."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from autofit.core.plan import KnobValue, Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.blocks import find_blocks
from autofit.strategies.compiled_regions import MOST_PARTS, CompiledCriterion, find_regions
from autofit.strategies.deferred_logits import DeferringForward
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch, TrainStep

ALL = members()
VOCABULARY = 1024
WIDTH = 16


class Norm(nn.Module):
    """A norm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * self.weight


class Embedding(nn.Module):
    """Tokens, positions, norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.2)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.dropout(self.norm(self.tokens(ids) + places))  # type: ignore[no-any-return]  # nn.Module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.blocks = Embedding(), nn.ModuleList([Block() for _ in range(4)])
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)  # type: ignore[no-any-return]  # nn.Module


IDS = torch.arange(4 * 8).view(4, 8) * 7 % VOCABULARY
PAIR = (IDS, IDS.flatten())


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, label_smoothing=0.1)


def draft_of(model: nn.Module, batch: Any = PAIR, loss_fn: Callable[..., Any] | None = cross_entropy) -> Draft:
    rule = resolve_loss(model, batch, loss_fn=loss_fn)
    return Draft(model, rule, torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cpu"))


def compiled(**values: KnobValue) -> Plan:
    return Plan(values={"compile": "blocks", **values})


def gradients(step: TrainStep, batch: Any = PAIR) -> dict[str, Tensor]:
    torch.manual_seed(5)
    step.backward(StepBatch.alike([batch]))
    return {name: weight.grad for name, weight in step.model.named_parameters() if weight.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Checks that gradients differ by the rounding of 16 bits at most."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 0.02 * value.norm(), name


def plain_backend(**more: Any) -> Any:
    """Returns a backend that partitions graphs as torch.compile does and generates no code."""
    boxed = {name: lambda graph, inputs: make_boxed_func(graph.forward) for name in ("fw_compiler", "bw_compiler")}
    return aot_autograd(**boxed, partition_fn=min_cut_rematerialization_partition, **more)


@pytest.fixture
def quick(compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has torch.compile trace and not generate code."""
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=plain_backend()))


with_compiler = pytest.mark.usefixtures("quick")
# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = pytest.mark.filterwarnings("default")


def regions(model: nn.Module) -> tuple[nn.Module, ...]:
    return find_regions(model, find_blocks(model))


def test_regions_are_what_runs_several_operators_outside_the_blocks() -> None:
    model = Model()
    assert regions(model) == (model.embedding, model.norm)
    stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    assert regions(nn.Sequential(nn.Sequential(stem, nn.LSTM(4, 4)), *[Block() for _ in range(4)])) == (stem,)


def test_a_large_part_is_no_region_but_its_parts_may_be() -> None:
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), Norm()) for _ in range(2)]
    wide = nn.Sequential(*parts, *[nn.Identity() for _ in range(MOST_PARTS)])
    model = nn.ModuleDict({"wide": wide, "blocks": nn.ModuleList([Block() for _ in range(4)])})
    assert find_regions(model, tuple(model["blocks"].children())) == tuple(parts)


def test_what_another_strategy_has_changed_is_no_region() -> None:
    model = Model()
    vars(model.embedding.norm)["forward"] = lambda x: x
    assert regions(model) == (model.norm,)


@with_compiler
@pytest.mark.parametrize("loss_fn", [cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1), None])
@pytest.mark.parametrize(("precision", "graphs"), [("fp32", 3), ("bf16", 4)])
def test_regions_and_a_loss_in_16_bits_are_compiled_with_the_same_gradient(
    loss_fn: Any, precision: str, graphs: int
) -> None:
    model, plain = Model(), Model()
    draft = draft_of(model, loss_fn=loss_fn)
    rule, before = draft.loss, [dict(vars(module)) for module in model.modules()]
    expected = gradients(prepare(compiled(compile="off", precision=precision), draft_of(plain, loss_fn=loss_fn), ALL))
    with prepare(compiled(precision=precision), draft, ALL) as step:
        assert_close(gradients(step), expected)
        assert counters["stats"]["unique_graphs"] == graphs  # embedding, blocks, norm, and in 16 bits the loss
        assert not counters["graph_break"]
        model.eval()
        plain.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(IDS), plain(IDS))
    assert draft.loss is rule
    model.train()
    assert [dict(vars(module)) for module in model.modules()] == before


@pytest.mark.usefixtures("compiler")
def test_copies_of_the_logits_in_float32_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    decomposing = plain_backend(decompositions=select_decomp_table())  # other random numbers for dropout
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=decomposing))
    found = {}
    for value in ("off", "blocks"):
        kept: list[int] = []

        def pack(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            if tensor.dtype == torch.float32:
                kept.append(tensor.numel())
            return tensor

        with prepare(compiled(compile=value, precision="bf16"), draft_of(Model()), ALL) as step:
            gradients(step)
            step.model.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                gradients(step)
        found[value] = sum(numel == IDS.numel() * VOCABULARY for numel in kept)
    assert found["off"] > 0
    assert found["blocks"] == 0


@with_compiler
def test_logits_in_chunks_stay_in_chunks() -> None:
    model, plain = Model(), Model()
    draft = draft_of(model)
    rule = draft.loss
    expected = gradients(prepare(Plan(), draft_of(plain), ALL))
    with prepare(compiled(linear_cross_entropy="chunked"), draft, ALL) as step:
        assert draft.loss is rule
        assert isinstance(vars(model.head)["forward"], DeferringForward)
        torch.testing.assert_close(gradients(step), expected)


@with_compiler
def test_a_step_function_stays_as_it_is() -> None:
    rule = LossRule("step_fn", lambda model, batch: cross_entropy(model(batch[0]), batch[1]), False, "")
    draft = draft_of(Model())
    draft.loss = rule
    with prepare(compiled(), draft, ALL) as step:
        assert draft.loss is rule
        gradients(step)
        assert counters["stats"]["unique_graphs"] == 3


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=WIDTH, n_layer=4, n_head=2, vocab_size=VOCABULARY, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=VOCABULARY, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@with_compiler
@pytest.mark.parametrize("make", [gpt2, llama])
def test_the_loss_of_a_transformers_model_is_compiled(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, batch = make(), {"input_ids": IDS, "labels": IDS}
    plain, before, loss = copy.deepcopy(model), dict(vars(model)), model.loss_function
    expected = gradients(prepare(Plan(values={"precision": "bf16"}), draft_of(plain, batch, None), ALL), batch)
    with prepare(compiled(precision="bf16"), draft_of(model, batch, None), ALL) as step:
        assert isinstance(model.loss_function, CompiledCriterion)
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert again.loss_function is loss
        assert_close(gradients(step, batch), expected)
        assert counters["stats"]["unique_graphs"] == (3 if make is llama else 2)
    assert vars(model) == before


@with_compiler
def test_no_loss_of_a_part_that_computes_none_is_replaced() -> None:
    model = nn.Sequential(gpt2().transformer)
    rule = LossRule("step_fn", lambda model, batch: model(batch).last_hidden_state.mean(), False, "")
    draft = Draft(model, rule, torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cpu"))
    with prepare(compiled(), draft, ALL):
        assert "_loss_function" not in vars(model[0])
