"""Selective recomputation: the same training, products computed once, and less memory than without checkpointing."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError
from autofit.core.plan import KnobValue, Plan
from autofit.strategies.recompute import Recompute
from autofit.strategies.selective_recompute import Keeping, Kept, is_kept
from autofit.tracing.tracing import trace
from tests.strategies.repeated_blocks import STRATEGY, Block, draft_of, mean_loss
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


class Twice(nn.Module):
    """Calls its blocks twice, so that autocast has the weights' casts in its cache the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for block in (*self.blocks, *self.blocks):
                x = block(x)
        return x.float()


VECTORS, IMAGES = torch.linspace(-1, 1, 512 * WIDTH).sin().view(16, 32, WIDTH), torch.randn(4, 8, 12, 12)
CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "dropout": (lambda: nn.Sequential(*[Block(WIDTH) for _ in range(3)]), VECTORS),
    "attention with dropout": (lambda: nn.Sequential(*[Attending() for _ in range(3)]), VECTORS),
    "in place": (lambda: nn.Sequential(*[InPlace() for _ in range(3)]), IMAGES),
    "autocast": (Twice, VECTORS),
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


def test_a_kept_graph_runs_backward_twice() -> None:
    torch.manual_seed(0)
    block, x = Block(WIDTH), VECTORS.clone().requires_grad_()
    loss = Recompute(block, selective=True)(block, x).sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)


def test_results_are_freed_as_the_backward_pass_uses_them() -> None:
    kept, block = Kept(), Block(WIDTH, p=0.0)
    with Keeping(kept):
        block(VECTORS)
    entries = [entry for results in kept.by_operator.values() for entry in results]
    assert len(entries) == 2
    assert all(entry is not None for entry in entries)


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
        STRATEGY.apply(plan_of(2, recomputed_operators="some"), draft_of(Twice()))


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
