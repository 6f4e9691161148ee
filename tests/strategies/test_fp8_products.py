"""float8 products, computed on the host by torchao: offer, gradient, undo, and the techniques that go with them."""

import copy
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.prepare import prepare
from autofit.probing.local_bench import LocalBench
from autofit.strategies import fp8_products, members
from autofit.strategies.fp8_products import Fp8Products
from autofit.workloads.step import StepBatch
from autofit.workloads.workload import Workload
from tests.conformance.test_strategies import WORKLOADS, Case, everything_but_values, offered, same_bits, values_of
from tests.gates.comparing import rounded

STRATEGY = Fp8Products()
CAST = Plan(values={"precision": "bf16"})
ON = Plan(values={"precision": "bf16", "fp8_products": True})
ALONE = Plan(values={"fp8_products": True})
installed = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
wide = partial(Case, WORKLOADS["wide"])


class Block(nn.Module):
    def __init__(self, *sizes: tuple[int, int], **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*each, **options) for each in sizes or ((16, 1040), (16, 1040)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = inputs + sum(layer(inputs)[:, :16] for layer in self.layers)
        return output


class Own(nn.Linear):
    """A linear layer that may compute something else."""


def layer_of(model: nn.Module) -> nn.Linear:
    """Returns the first layer of a wide model that multiplies in float8."""
    layer = model.get_submodule("1.0")
    assert isinstance(layer, nn.Linear)
    return layer


def reason(case: Case, **changes: Any) -> str:
    offer = STRATEGY.offer(replace(case.facts(), **changes))
    assert offer.knobs == ()
    return offer.refused[0].reason


def converted(*blocks: Block) -> list[int]:
    """Returns the positions, in module order, of the layers that would multiply in float8."""
    model = nn.Sequential(nn.Linear(16, 2048), *blocks, nn.Linear(16, 2048))
    found = fp8_products._layers(model)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [linear.index(layer) for layer in found]


def loss_and_gradients(case: Case, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    with prepare(plan, case.draft, members()) as step:
        loss = step.backward(StepBatch.of([case.batch]))
        found = [p.grad.flatten().float() for p in case.model.parameters() if p.grad is not None]
        for parameter in case.model.parameters():
            parameter.grad = None
    return loss, torch.cat(found)


@installed
def test_what_is_missing_is_named() -> None:
    case = wide()
    assert "numerics='any'" in reason(case, numerics="mixed")
    assert "for training" in reason(case, training=False)
    assert "no fast products in float8" in reason(case, capabilities=frozenset({"bf16"}))
    (refused,) = STRATEGY.offer(replace(case.facts(), capabilities=frozenset())).refused
    assert refused.origin == "device"
    assert "more than 1024 outputs" in reason(Case(WORKLOADS["transformer"]))
    with patch("importlib.util.find_spec", lambda name: None):
        assert ".[torchao]" in reason(case)
        with pytest.raises(SpaceError, match="torchao is not installed"), STRATEGY.apply(ON, case.draft):
            pass
    with patch.object(fp8_products, "_library", side_effect=ImportError("no such symbol")):
        assert "no such symbol" in reason(case)
    vars(case.model)["_compiled_call_impl"] = case.model._call_impl
    assert "uncompiled" in reason(case)


def test_only_large_trained_layers_of_torch_in_blocks_are_converted() -> None:
    assert converted(Block(), Block()) == [1, 2, 3, 4]
    assert converted(Block()) == []  # nothing is repeated
    assert converted(Block((16, 1024), (4096, 1024)), Block((16, 1024), (16, 1040))) == [4]
    assert converted(Block((4112, 16), (16, 1040)), Block((16, 1048), (24, 1040))) == [1, 2]
    assert converted(Block(dtype=torch.float64), Block(dtype=torch.bfloat16)) == [3, 4]


def test_layers_with_a_computation_of_their_own_keep_it() -> None:
    one, other = Block(), Block()
    one.layers[0] = Own(16, 1040)
    one.layers[1].weight.requires_grad_(False)
    vars(other.layers[0])["forward"] = other.layers[0].forward
    assert converted(one, other) == [4]
    one, other = Block(), Block()
    nn.utils.parametrizations.weight_norm(one.layers[0])
    with warnings.catch_warnings(action="ignore"):
        nn.utils.weight_norm(other.layers[1])  # deprecated, but in use
    assert converted(one, other) == [2, 3]


def test_other_precisions_conflict_and_nothing_else() -> None:
    def conflicts(**values: Any) -> list[str]:
        plan = Plan(values={**ALONE.values, **values})
        return [found for member in members() if (found := member.conflict(plan)) is not None]

    assert conflicts() == conflicts(precision="bf16") == conflicts(precision="bf16", compile="default") == []
    assert all("bf16 autocast" in conflicts(precision=other)[0] for other in ("fp32", "tf32", "fp16"))
    assert STRATEGY.conflict(Plan(values={"fp8_products": False, "precision": "fp16"})) is None
    assert "a probe measures" in str(STRATEGY.untraceable(ON))
    assert STRATEGY.untraceable(CAST) is None


@installed
def test_a_model_without_large_layers_is_refused_and_left_as_it_was() -> None:
    small = Case(WORKLOADS["mlp"])
    before = everything_but_values(small)
    with pytest.raises(SpaceError, match="no trained linear layer"), STRATEGY.apply(ON, small.draft):
        pass
    assert everything_but_values(small) == before


@installed
@pytest.mark.parametrize("plan", [ON, ALONE], ids=["bf16", "fp32"])
def test_the_gradient_differs_by_the_digits_of_float8_and_by_no_more(plan: Plan) -> None:
    """An operand in e4m3 has 3 bits after the point, a gradient in e5m2 has 2; a gradient in bfloat16 errs by 5e-3."""
    case, precise = wide(), Plan(values={**plan.values, "fp8_products": False})
    loss, found = loss_and_gradients(case, plan)
    expected_loss, expected = loss_and_gradients(case, precise)
    assert loss.dtype == expected_loss.dtype
    assert float(loss) == pytest.approx(float(expected_loss), rel=0.01)
    assert 0.01 < float((found - expected).norm() / expected.norm()) < 0.1


@installed
def test_each_layer_multiplies_in_float8_three_times_and_keeps_the_types_of_autocast() -> None:
    case, products = wide(), []
    layer, types = layer_of(case.model), list[torch.dtype]()
    multiply = torch._scaled_mm

    def counted(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        products.append((first.dtype, second.dtype))
        return multiply(first, second, *args, **kwargs)

    with patch("torch._scaled_mm", counted), prepare(ON, case.draft, members()) as step:
        layer.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
        step(case.batch)
        with torch.no_grad():
            assert case.model(case.batch[0]).dtype == torch.float32  # outside the step
            assert case.model(case.batch[0][:0]).shape == (0, 11)  # no rows
    weight, gradient = torch.float8_e4m3fn, torch.float8_e5m2
    blocks, steps, evaluations = 2, 1, 1
    assert products.count((weight, weight)) == blocks * (steps + evaluations)
    assert sum(gradient in pair for pair in products) == 2 * blocks * steps
    assert len(products) == 3 * blocks * steps + blocks * evaluations
    assert types[0] == torch.bfloat16


@installed
def test_training_follows_bf16_autocast_and_leaves_modules_names_and_parameters() -> None:
    case, other = wide(), wide()
    names, before = list(case.model.state_dict()), everything_but_values(case)
    modules, parameters = [*map(id, case.model.modules())], [*map(id, case.model.parameters())]
    with prepare(CAST, other.draft, members()) as step:
        expected = [float(step(other.batch)) for _ in range(20)]
    with prepare(ON, case.draft, members()) as step:
        found = [float(step(case.batch)) for _ in range(20)]
        assert list(case.model.state_dict()) == names
        assert [*map(id, case.model.modules())] == modules
        assert [*map(id, case.model.parameters())] == parameters
        copied = copy.deepcopy(case.model)
        layer = layer_of(copied)
        layer.weight = nn.Parameter(torch.zeros(1040, 16))  # is used, although it is another object
        assert torch.equal(layer(torch.ones(2, 16)), layer.bias.expand(2, -1))
        assert list(copied.state_dict()) == names
    assert expected[-1] < 0.5 * expected[0]
    assert found == pytest.approx(expected, rel=0.1, abs=0.02)
    assert everything_but_values(case) == before


@installed
def test_what_torchao_changes_in_the_compiler_is_put_back() -> None:
    from torch._inductor.codegen.triton import TritonOverrides  # noqa: PLC0415  # loads the compiler

    patched: Any = sys.modules["torchao.float8._inductor_patch"] if "torchao" in sys.modules else None
    before = dict(vars(TritonOverrides))
    with STRATEGY.apply(ON, wide().draft):
        patched = sys.modules["torchao.float8._inductor_patch"]
        assert patched._PATCHED
        assert vars(TritonOverrides)["maximum"] is not before["maximum"]
    assert not patched._PATCHED
    assert dict(vars(TritonOverrides)) == before


@installed
def test_the_gate_finds_how_much_float8_changes() -> None:
    case = wide()
    found = rounded(lambda plan: prepare(plan, case.draft, members()), ALONE, case.batch, 0)
    assert found.compared
    assert "cosine of the gradient 0.99" in found.reason


@installed
def test_a_search_offers_float8_with_its_gate_and_proves_a_plan_with_it() -> None:
    batch = wide().batch
    loader = DataLoader(TensorDataset(*(each.repeat(8, *[1] * (each.dim() - 1)) for each in batch)), batch_size=4)
    host = devices.choose("cpu")
    able = host.capabilities() | {"fp8", "bf16"}
    options = Options(memory_budget="1GiB", strategies=("precision", "fp8_products"), numerics="any")
    workload = Workload(wide().model, loader, loss_fn=F.cross_entropy)
    with patch.object(type(host), "capabilities", lambda self: able), LocalBench(workload, host, options) as bench:
        briefing = bench.briefing
        plan = briefing.space.baseline.replace(**ON.values)
        space = SearchSpace(briefing.space)
        assert space.violation(plan) is None
        assert "bf16 autocast" in str(space.violation(plan.replace(precision="fp32")))
        checked = bench.check(plan, {})
        assert checked.passed
        gate = checked.verdicts.get("fp8_products=True")
        assert gate is not None
        assert gate.passed or any("fp8_products=True: cosine" in caveat for caveat in checked.caveats)
        outcome = bench.evaluate(plan, Purpose.PROOF)
    assert outcome.measured, outcome.reason


def other_values() -> Iterator[Plan]:
    """Yields the values of other strategies that the host offers beside float8 products."""
    facts = wide().facts()
    plain = {knob.name: knob.default for member in members() for knob in member.offer(facts).knobs}
    for plan in chain.from_iterable(offered(member, facts) for member in members()):
        whole = Plan(values={**plain, **ON.values, **plan.values})
        if plan.values.items() - plain.items() and not any(member.conflict(whole) for member in members()):
            yield whole


@pytest.fixture
def captured() -> Iterator[None]:
    """Captures compiled graphs, but makes no kernels, which take seconds."""
    compiles: Callable[..., Any] = torch.compile

    def capturing(model: Any = None, **options: Any) -> Any:
        return compiles(model, backend="aot_eager", dynamic=options.get("dynamic"))

    with patch("torch.compile", capturing):
        yield


@installed
@pytest.mark.usefixtures("compiler", "captured")
@pytest.mark.filterwarnings("default")  # torch 2.13 warns of its own code while it compiles
def test_every_other_technique_trains_in_float8_as_it_does_without_it_and_leaves_no_trace() -> None:
    plans = list(other_values())
    changed = {name for plan in plans for name, value in plan.values.items() if value != plans[0].values.get(name)}
    assert {"compile", "optimizer_in_backward", "optimizer_states", "micro_batch_size"} <= changed
    for plan in plans:
        case, other = wide(), wide()
        before, values = everything_but_values(case), values_of(case)
        with prepare(plan, case.draft, members()) as step:
            found = float(step(case.step_batch(plan)))
        assert everything_but_values(case) == before, plan
        assert not same_bits(values_of(case), values), plan
        with prepare(plan.replace(fp8_products=False), other.draft, members()) as step:
            assert found == pytest.approx(float(step(other.step_batch(plan))), rel=0.01), plan


@installed
@pytest.mark.usefixtures("compiler", "captured")
@pytest.mark.filterwarnings("default")
def test_blocks_share_their_compiled_code_and_the_next_step_finds_it() -> None:
    """Code that is kept for each object would reach torch's limit of 8, after which nothing is compiled."""

    def twelve() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
        model = nn.Sequential(nn.Linear(6, 16), *(Block() for _ in range(12)), nn.Linear(16, 11))
        return model, torch.optim.AdamW(model.parameters()), torch.randn(4, 6)

    case = Case(twelve)
    counts = sys.modules["torch._dynamo.utils"].counters["stats"]
    before = counts["unique_graphs"]
    for _ in range(2):
        with prepare(ON.replace(compile="blocks"), case.draft, members()) as step:
            step(case.batch)
        assert counts["unique_graphs"] == before + 1
