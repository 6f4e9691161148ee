"""Selective recomputation: the same training, products computed once, and less memory than without checkpointing."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.plan import KnobValue, Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Span, Watch
from autofit.strategies.blocks import find_blocks
from autofit.strategies.checkpointing import all_selectively
from autofit.strategies.recompute import is_kept, selection_refusal
from autofit.tracing.tracing import rehearse, trace
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload
from tests.strategies.repeated_blocks import LOSS, STRATEGY, Block, draft_of, facts_of, mean_loss
from tests.tracing.test_tracing import peaks
from tests.tracing.tiny import Gpt, words, workload

CHEAP = {"recomputed_operators": "cheap"}
WIDTH = 64


class Attending(nn.Module):
    """Attention with dropout, whose result comes before other dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(x).chunk(3, -1)
        p = 0.3 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=p)
        return x + self.dropout(self.out(mixed))  # type: ignore[no-any-return]  # nn.Module


class InPlace(nn.Module):
    """Convolutions whose results are changed in place, with a batch norm whose buffers must be updated once."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * 2  # type: ignore[no-any-return]  # nn.Module


class Cast(nn.Module):
    """Runs its blocks under autocast, `times` times, and later runs find the weights' casts in autocast's cache."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.blocks, self.times = nn.ModuleList([Block(WIDTH) for _ in range(2)]), times

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for block in [*self.blocks] * self.times:
                x = block(x)
        return x.float()


class Views(nn.Module):
    """Uses a product by views of it, by one layer called three times with the same input, and gives more than tensors.

    `Own` is a function with a backward pass of its own, and the inner block is checkpointed by the model itself.
    """

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight, product := x @ weight)
            return product.tanh()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            x, weight, product = ctx.saved_tensors
            gradient = gradient * (1 - product.tanh() ** 2)
            return gradient @ weight.T, x.flatten(0, -2).T @ gradient.flatten(0, -2)

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out, self.inner = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Block(WIDTH)

    def forward(self, given: Any) -> Any:
        x, size = given if isinstance(given, tuple) else (given, 1)
        gate, key, value = self.mix(x).chunk(3, -1)
        x = torch.sigmoid(gate) * key + value.transpose(0, 1).transpose(0, 1)
        x = self.out(x) + torch.tanh(self.out(x)) * self.out(x)
        x = checkpoint(self.inner, x, use_reentrant=False)
        return Views.Own.apply(x, self.out.weight) * size, x.shape[0] // x.shape[0]  # type: ignore[no-untyped-call]


class First(nn.Module):
    """Gives the tensor of its blocks' result."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Views() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)[0]  # type: ignore[no-any-return]  # nn.Module


VECTORS, IMAGES = torch.linspace(-1, 1, 512 * WIDTH).sin().view(16, 32, WIDTH), torch.randn(4, 8, 12, 12)
CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "dropout": (lambda: nn.Sequential(*[Block(WIDTH) for _ in range(3)]), VECTORS),
    "attention with dropout": (lambda: nn.Sequential(*[Attending() for _ in range(3)]), VECTORS),
    "autocast": (Cast, VECTORS),
    "views, own functions, own checkpointing": (First, VECTORS),
}


def plan_of(count: KnobValue, **values: KnobValue) -> Plan:
    return Plan(values={"checkpointed_blocks": count, **values})


def trained(model: nn.Module, batch: Tensor, plan: Plan) -> dict[str, Tensor]:
    """Returns the state and the gradients after two steps of a copy of `model`."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    with STRATEGY.apply(plan, draft_of(model)):
        for _ in range(2):
            optimizer.zero_grad()
            mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
    gradients = {f"{name}.grad": weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {**model.state_dict(), **gradients}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CASES)
def test_training_is_bit_identical_to_that_without_checkpointing(name: str) -> None:
    make, batch = CASES[name]
    torch.manual_seed(0)
    model = make()
    plain, selective = trained(model, batch, Plan()), trained(model, batch, plan_of(2, **CHEAP))
    assert plain.keys() == selective.keys()
    for key, value in plain.items():
        assert torch.equal(selective[key], value), key


def test_products_run_once_and_cheap_operators_twice() -> None:
    model = nn.Sequential(Block(WIDTH), Block(WIDTH))
    counts = {}
    for plan in (Plan(), plan_of(2, **CHEAP), plan_of(2)):
        with STRATEGY.apply(plan, draft_of(model)), Counting() as counting:
            mean_loss(model, VECTORS).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        counts[len(plan.values)] = counting.calls
    plain, full, selective = counts[0], counts[1], counts[2]
    product, cheap = "aten.addmm.default", "aten.tanh.default"
    assert (plain[product], selective[product]) == (4, 4)
    assert full[product] > 4  # the last product of a block is not needed again
    assert (plain[cheap], selective[cheap], full[cheap]) == (2, 4, 4)


def test_products_of_few_terms_are_recomputed() -> None:
    product, convolution = torch.ops.aten.mm.default, torch.ops.aten.convolution.default
    long, short = torch.empty(3, 64), torch.empty(3, 63)
    assert is_kept(product, (long, long.T), {})
    assert not is_kept(product, (short, short.T), {})
    image = torch.empty(1, 64, 8, 8)
    assert is_kept(convolution, (image, torch.empty(64, 64, 3, 3)), {})
    assert not is_kept(convolution, (image, torch.empty(64, 1, 3, 3)), {})  # depthwise
    assert not is_kept(torch.ops.aten.bmm.default, (torch.empty(2, 3, 64), torch.empty(2, 64, 3)), {})


def test_attention_is_kept_unless_it_has_dropout() -> None:
    heads = torch.empty(1, 2, 8, 16)
    for attention in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"):
        operator = getattr(torch.ops.aten, attention).default
        assert is_kept(operator, (heads, heads, heads), {})
        assert not is_kept(operator, (heads, heads, heads, 0.1), {})
        assert not is_kept(operator, (heads, heads, heads), {"dropout_p": 0.1})


def tied() -> nn.Module:
    """A model whose first layer has the weight of a block."""
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), Block(WIDTH), Block(WIDTH))
    block = model[2]
    assert isinstance(block, Block)
    model[0].weight = block.up.weight
    return model


def penalized(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss of a step with a gradient penalty, which runs the backward pass twice."""
    batch = batch.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
    return slope.square().mean()


def reason_of(model: nn.Module, batch: Tensor, loss: LossRule = LOSS, calls: int = 1) -> str:
    """Returns why cheap operators of this model are not recomputed on their own."""

    def rehearsed(watch: Watch) -> bool:
        loader = DataLoader(TensorDataset(batch), batch_size=2)
        return rehearse(Workload(model, loader, step_fn=loss.compute), loss, Counted(batch[:2], 2), watch)

    blocks = find_blocks(model)
    spans = [Span(block) for block in range(len(blocks))] * calls
    return selection_refusal(replace(facts_of(model), rehearse=rehearsed), blocks, spans, all_selectively)


@pytest.mark.parametrize("name", CASES)
def test_what_keeps_its_gradient_is_not_refused(name: str) -> None:
    make, batch = CASES[name]
    assert reason_of(make(), batch) == ""


def test_what_torch_gets_wrong_is_refused_with_the_reason() -> None:
    in_place = nn.Sequential(*[InPlace() for _ in range(3)])
    assert "changes a kept result in place" in reason_of(in_place, IMAGES)
    assert "a block is called more than once" in reason_of(Cast(2), VECTORS, calls=2)
    assert "shares a weight with another module" in reason_of(tied(), VECTORS)
    plain = nn.Sequential(*[Block(WIDTH) for _ in range(2)])
    rule = LossRule("step_fn", penalized, inferred=False, about="the gradient's size")
    assert "backward pass of a block twice" in reason_of(plain, VECTORS, rule)


@pytest.mark.parametrize(
    ("make", "batch", "loss"),
    [
        (lambda: nn.Sequential(*[InPlace() for _ in range(3)]), IMAGES, mean_loss),
        (lambda: Cast(2), VECTORS, mean_loss),
        (lambda: nn.Sequential(*[Block(WIDTH) for _ in range(2)]), VECTORS, penalized),
    ],
)
@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 compares fewer operators of the two runs")
def test_torch_fails_where_it_is_refused(make: Any, batch: Tensor, loss: Any) -> None:
    model = make()
    with (
        STRATEGY.apply(plan_of(2, **CHEAP), draft_of(model)),
        pytest.raises(RuntimeError, match=r"during selective|an extra time|during backward but not found"),
    ):
        loss(model, batch).backward()


def test_a_step_that_cannot_run_without_data_is_left_to_a_probe() -> None:
    def unable(watch: Watch) -> bool:
        raise Untraceable("the result of aten.nonzero depends on data", "model.py:3")

    model = nn.Sequential(Block(WIDTH), Block(WIDTH))
    facts = replace(facts_of(model), rehearse=unable)
    assert selection_refusal(facts, find_blocks(model), [], all_selectively) == ""


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_keep_products_and_recompute_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        counts.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
        bw_compiler=count,
        partition_fn=min_cut_rematerialization_partition,
    )
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model = nn.Sequential(*[Block(WIDTH, p=0.0) for _ in range(4)])
    plain = trained(model, VECTORS, Plan())
    for operators, repeats in (("all", True), ("cheap", False)):
        counts.clear()
        again = copy.deepcopy(model)
        plan = plan_of(4, recomputed_operators=operators, compile="blocks")
        optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
        with prepare(plan, replace(draft_of(again), optimizer=optimizer), members()) as step:
            for _ in range(2):
                step(VECTORS)
        assert bool(counts["aten.addmm.default"]) is repeats
        assert counts["aten.tanh.default"]
        for name, value in again.state_dict().items():
            torch.testing.assert_close(value, plain[name])


def test_traced_memory_lies_between_full_checkpointing_and_none() -> None:
    batch = words(8)
    made, rule = workload(Gpt(layers=4), batch)
    found = {
        plan: max(peaks(trace(made, rule, plan.replace(micro_batch_size=8), batch, torch.device("cpu"))).values())
        for plan in (plan_of(0), plan_of(4, **CHEAP), plan_of(4))
    }
    none, selective, full = found.values()
    assert none > selective * 1.1 > full * 1.2


def test_torchs_own_functions_are_not_changed() -> None:
    assert checkpoint.__module__ == "torch.utils.checkpoint"
    with pytest.raises(SpaceError, match=r"recomputed_operators='some' .*expected all or cheap"):
        STRATEGY.apply(plan_of(2, recomputed_operators="some"), draft_of(Cast()))


@pytest.mark.parametrize("count", [0, "default"])
def test_selection_needs_checkpointed_blocks(count: KnobValue) -> None:
    assert f"nothing beside checkpointed_blocks={count}" in str(STRATEGY.conflict(plan_of(count, **CHEAP)))
    assert STRATEGY.conflict(plan_of(1, **CHEAP)) is None
    assert STRATEGY.conflict(plan_of(count, recomputed_operators="all")) is None


def test_a_search_recommends_cheap_operators() -> None:
    torch.manual_seed(0)
    model, texts = Gpt(128), torch.randint(0, 96, (32, 64))
    fit = autofit.tune(
        model,
        DataLoader(TensorDataset(texts, texts), batch_size=8),
        loss_fn=F.cross_entropy,
        strategies=["checkpointing"],
        pinned=CHEAP,
        time_budget="60s",
        device="cpu",
        study=":memory:",
        progress=False,
    )
    assert fit.baseline.plan.values["recomputed_operators"] == "all"
    assert fit.plan.values["recomputed_operators"] == "cheap"
    assert fit.plan.values["checkpointed_blocks"] != 0
