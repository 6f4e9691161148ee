"""Compilation: real inductor on tiny models. The same training, the author's own choice respected, no trace."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit import devices
from autofit.core.errors import SpaceError
from autofit.core.plan import KnobValue, Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.compilation import (
    BLOCKS,
    GRAPHS,
    KNOB,
    LEAST_BLOCKS,
    MODEL,
    OFF,
    TUNED,
    VALUES,
    Compilation,
)
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft

STRATEGY = Compilation()
HOST = frozenset({"compiled code"})
EVERYTHING = frozenset({"compiled code", "tuned kernels", "cuda graphs"})
RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.filterwarnings("default")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def stack(blocks: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *(Block() for _ in range(blocks)), nn.Linear(8, 3))


def draft_of(model: nn.Module, *, varies: bool = False) -> Draft:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Draft(model, RULE, optimizer, torch.device("cpu"), varies=varies)


def batch_of(size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def facts_of(model: nn.Module, **changes: Any) -> Facts:
    known = Facts(model, batch_of(), None, "cpu", HOST, "exact", training=True, micro_batch_size=4)
    return replace(known, **changes)


def compiled(value: str) -> Plan:
    return Plan(values={KNOB: value})


def graphs() -> int:
    found: int = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    return found


def test_the_host_is_offered_the_model_and_its_blocks() -> None:
    knob = STRATEGY.offer(facts_of(stack())).knobs[0]
    assert knob.values == (OFF, MODEL, BLOCKS)
    assert knob.default == OFF
    assert knob.warm_up_s[0] == 0
    assert all(seconds > 0 for seconds in knob.warm_up_s[1:])


def test_each_device_is_offered_what_it_can() -> None:
    knob = STRATEGY.offer(facts_of(stack(), capabilities=EVERYTHING)).knobs[0]
    assert knob.values == VALUES
    offer = STRATEGY.offer(facts_of(stack()))
    assert {refused.name: refused.origin for refused in offer.refused} == {
        f"{KNOB}={TUNED}": "device",
        f"{KNOB}={GRAPHS}": "device",
    }
    (refused,) = STRATEGY.offer(facts_of(stack(), capabilities=frozenset())).refused
    assert refused.origin == "device"


def test_where_shapes_vary_nothing_is_tuned_or_recorded_for_one_shape() -> None:
    offer = STRATEGY.offer(facts_of(stack(), capabilities=EVERYTHING, varies=True))
    assert offer.knobs[0].values == (OFF, MODEL, BLOCKS)
    assert all("each shape" in refused.reason for refused in offer.refused)


@pytest.mark.parametrize("blocks", [0, LEAST_BLOCKS - 1])
def test_few_blocks_are_not_compiled_alone(blocks: int) -> None:
    offer = STRATEGY.offer(facts_of(stack(blocks)))
    assert BLOCKS not in offer.knobs[0].values
    (reason,) = (refused.reason for refused in offer.refused if refused.name == f"{KNOB}={BLOCKS}")
    assert (f"{blocks} repeated" in reason) or (blocks == 0 and "no repeated blocks" in reason)


def decorated() -> nn.Module:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        @torch.compile(backend="eager")
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            """Compiled by the author."""
            found: torch.Tensor = self.inner(x)
            return found

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encode(x)

    return Decorated()


class Excluded(nn.Module):
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Excluded from compilation by the author, which is no reason not to compile the rest."""
        return x


def compiled_in_place() -> nn.Module:
    model = stack()
    model[1].compile(backend="eager")  # type: ignore[index]  # a Sequential
    return model


def scripted() -> nn.Module:
    with pytest.warns(DeprecationWarning, match="script"):
        part: nn.Module = torch.jit.script(nn.Linear(6, 6))
    return nn.Sequential(part, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.compile(stack(), backend="eager"), "already compiled by its author"),
        (compiled_in_place, "module '1' is already compiled by its author"),
        (decorated, "encode of the model is already compiled by its author"),
        (scripted, "TorchScript"),
    ],
)
def test_what_the_author_compiled_stays_as_it_is(make: Callable[[], nn.Module], named: str) -> None:
    model = make()
    (refused,) = STRATEGY.offer(facts_of(model)).refused
    assert named in refused.reason
    with pytest.raises(SpaceError, match="compile='default'"), STRATEGY.apply(compiled(MODEL), draft_of(model)):
        pass


def test_a_part_that_the_author_excluded_is_no_obstacle() -> None:
    assert STRATEGY.offer(facts_of(nn.Sequential(Excluded(), nn.Linear(6, 3)))).knobs


def test_without_a_compiler_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (refused,) = STRATEGY.offer(facts_of(stack())).refused
    assert "no-such-compiler" in refused.reason
    assert "install" in refused.reason
    assert not refused.origin


@pytest.mark.parametrize("value", [True, 0, "everything", ""])
def test_unknown_values_are_rejected(value: KnobValue) -> None:
    with pytest.raises(SpaceError, match=KNOB), STRATEGY.apply(Plan(values={KNOB: value}), draft_of(stack())):
        pass


def test_blocks_of_a_model_without_any_are_rejected() -> None:
    with pytest.raises(SpaceError, match="no repeated blocks"), STRATEGY.apply(compiled(BLOCKS), draft_of(stack(0))):
        pass


def test_the_model_keeps_its_objects_names_and_hooks_and_can_be_copied() -> None:
    model = stack()
    objects, names, before = [*model.modules()], [*model.state_dict()], [dict(vars(m)) for m in model.modules()]
    with prepare(compiled(BLOCKS), draft_of(model), members()) as step:
        assert [*step.model.modules()] == objects
        assert [*step.model.state_dict()] == names
        assert step.draft.compiled
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # its own
            assert all("_compiled_call_impl" not in vars(module) for module in again.modules())
        torch.save(model, io.BytesIO())
    assert [dict(vars(m)) for m in model.modules()] == before
    assert not step.draft.compiled


def test_a_plan_that_compiles_says_why_it_has_no_trace() -> None:
    assert STRATEGY.untraceable(Plan(values={KNOB: OFF})) is None
    assert STRATEGY.untraceable(Plan()) is None
    assert "a probe measures it" in str(STRATEGY.untraceable(compiled(MODEL)))


@pytest.fixture(scope="module", autouse=True)
def cached_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has the tests of this file share their code: what is tested here is not how long it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("value", "blocks"), [(MODEL, 1), (BLOCKS, 4)])
def test_compiled_steps_train_as_uncompiled_ones(value: str, blocks: int) -> None:
    model, plain = stack(blocks), stack(blocks)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    draft, before = draft_of(model), [dict(vars(module)) for module in model.modules()]
    for _ in range(2):  # applied, undone and applied again
        with prepare(compiled(value), draft, members()) as step:
            losses = [step(batch_of()) for _ in range(2)]
        assert [dict(vars(module)) for module in model.modules()] == before
    assert len(calls) == 4
    expected = prepare(Plan(), draft_of(plain), members())
    wanted = [expected(batch_of()) for _ in range(4)]
    torch.testing.assert_close(losses, wanted[2:])
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


@pytest.mark.slow
def test_equal_blocks_share_one_graph_also_of_a_class_of_torchs_own() -> None:
    before = graphs()
    with prepare(compiled(BLOCKS), draft_of(stack(6)), members()) as step:
        step(batch_of())
    assert graphs() == before + 1
    with prepare(
        compiled(MODEL), draft_of(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))), members()
    ) as step:
        step(batch_of())
    assert graphs() == before + 2  # `Sequential.compile()` would have compiled nothing


@pytest.mark.slow
def test_fixed_shapes_get_code_of_their_own_and_varying_ones_share_it() -> None:
    for varies, expected in ((False, 3), (True, 2)):
        torch.compiler.reset()
        before = graphs()
        with prepare(compiled(MODEL), draft_of(nn.Sequential(nn.Linear(6, 3)), varies=varies), members()) as step:
            for size in (4, 6, 9):
                step(batch_of(size))
        assert graphs() == before + expected


@pytest.mark.slow
@pytest.mark.parametrize("value", [MODEL, BLOCKS])
def test_checkpointed_blocks_are_compiled_and_keep_their_gradients(value: str) -> None:
    model, plain = stack(2), stack(2)
    plan = Plan(values={KNOB: value, "checkpointed_blocks": 1})
    with prepare(plan, draft_of(model), members()) as step:
        step(batch_of())
    prepare(Plan(), draft_of(plain), members())(batch_of())
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_the_host_generates_code_and_the_package_loads_no_compiler() -> None:
    assert "compiled code" in devices.host().capabilities()
    loaded = "import sys, autofit.strategies as s; s.members(); print('torch._dynamo' in sys.modules)"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout.strip() == "False"
