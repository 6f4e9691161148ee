"""What counts as the same workload: code and plain attributes that are reached, and nothing that training changes."""

import enum
import functools
import pathlib
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

from autofit import identity
from autofit.identity import (
    MOST_ITEMS,
    are_drawn_positions,
    code_text,
    digest,
    is_configuration,
    named,
    plain,
    reach,
    wrapped_function,
)
from tests.processes import printed_by_two_processes

COUNT = 0


class Rows(Dataset[torch.Tensor]):
    def __init__(self, work: int = 1) -> None:
        self.work = work

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((self.work,), float(at))


@pytest.mark.parametrize(
    "around",
    [
        lambda rows: rows,
        lambda rows: Subset(rows, [0, 1, 2]),
        lambda rows: ConcatDataset([rows, rows]),
        lambda rows: random_split(rows, [4, 4])[0],
    ],
)
def test_a_data_set_inside_one_of_torch_counts_and_the_positions_drawn_do_not(around: Callable[[Rows], Any]) -> None:
    assert lines(dataset=around(Rows(1))) == lines(dataset=around(Rows(1)))
    assert lines(dataset=around(Rows(1))) != lines(dataset=around(Rows(500)))


class Monitor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x


class Solver(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.monitor = steps, Monitor()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.steps):
            x = self.monitor(x)
        return x


def between(step: Callable[[], object], **given: object) -> list[str]:
    """Returns the facts that are equal before and after a step."""
    before = reach(**given)
    step()
    stable = dict(reach(**given).items() & before.items())
    return identity.lines(stable, "code") + identity.lines(stable, "attributes")


def test_what_a_method_counts_is_of_its_object_and_of_no_other() -> None:
    """A monitor's `self.steps += 1` made solvers of 2 and of 200 steps the same workload."""

    def told(model: Solver) -> list[str]:
        return between(lambda: model(torch.ones(2)), model=model)

    assert told(Solver(2)) != told(Solver(200))
    counted = Solver(2)
    counted(torch.ones(2))
    assert told(counted) == told(Solver(2))


class ReachSlotted:
    __slots__ = ("__size",)

    def __init__(self, size: int) -> None:
        self.__size = size


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Tripling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: torch.ops.aten.relu, lambda: torch.ops.aten.sigmoid),
        (lambda: torch.ops.aten.relu.default, lambda: torch.ops.aten.sigmoid.default),
        (lambda: np.sin, lambda: np.cos),
        (lambda: np.vectorize(doubled), lambda: np.vectorize(tripled)),
        (lambda: ReachSlotted(1), lambda: ReachSlotted(2)),
        (lambda: torch.jit.script(Doubling()), lambda: torch.jit.script(Tripling())),
        (lambda: DataLoader(Rows(1)), lambda: DataLoader(Rows(500))),
        (lambda: "a" * 5000, lambda: "a" * 4999 + "b"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_what_computes_something_else_is_told_apart(one: Callable[[], object], other: Callable[[], object]) -> None:
    def told(thing: object) -> list[str]:
        return lines(holder=SimpleNamespace(thing=thing))

    assert told(one()) == told(one())
    assert told(one()) != told(other())


class ReachSettings(BaseModel):
    rate: float = 0.1


def test_classes_of_pydantic_and_what_torch_compile_adds_are_the_same_in_every_process() -> None:
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    told = "\n".join(
        lines(thing=ReachSettings(), kind=ReachSettings, model=model, loss=torch.compile(doubled, backend="eager"))
    )
    assert "__pydantic_core_schema__" not in told
    assert "_wrapper_id" not in told
    assert lines(thing=ReachSettings(rate=0.1)) != lines(thing=ReachSettings(rate=0.2))
    assert lines(loss=torch.compile(doubled, backend="eager")) != lines(loss=torch.compile(tripled, backend="eager"))


def test_a_docstring_does_not_count() -> None:
    sources = [
        f'def step(x):\n    """{text}"""\n    return x * {by}'
        for text, by in (("Doubles.", 2), ("Twice.", 2), ("D.", 3))
    ]
    first, reworded, other = (lines(step=module_of(source).step) for source in sources)
    assert first == reworded
    assert first != other


def tree_with_parents() -> dict[str, Any]:
    root: dict[str, Any] = {"name": "root", "parent": None, "children": []}
    for name in "abcdefgh":
        root["children"].append({"name": name, "parent": root, "children": []})
    return root


def shared_lists() -> list[Any]:
    found: list[Any] = [1]
    for _ in range(60):
        found = [found, found]
    return found


@pytest.mark.parametrize("make", [tree_with_parents, shared_lists])
def test_containers_that_hold_each_other_are_looked_at_once(make: Callable[[], object]) -> None:
    """A tree of four nodes with parents was not done after ten seconds."""
    began = time.monotonic()
    assert lines(thing=SimpleNamespace(tree=make())) == lines(thing=SimpleNamespace(tree=make()))
    assert time.monotonic() - began < 1.0


class Raising(list[int]):
    def __len__(self) -> int:
        raise RuntimeError("not now")

    def __iter__(self) -> Any:
        raise RuntimeError("not now")


def dead_proxy() -> object:
    return weakref.proxy(set())


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1 << 60_000,
        lambda: Path("caf\udce9"),
        lambda: re.compile("[\ud800-\udfff]"),
        lambda: [nn.UninitializedParameter()],
        dead_proxy,
        Raising,
    ],
)
def test_objects_that_do_not_bear_being_looked_at_stop_nothing(make: Callable[[], object]) -> None:
    told = lines(thing=SimpleNamespace(inside=make(), size=3))
    assert any("size" in line for line in told)
    assert digest(told)


def lines(**given: object) -> list[str]:
    facts = reach(**given)
    return identity.lines(facts, "code") + identity.lines(facts, "attributes")


def module_of(source: str, name: str = "helpers_of_a_test") -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, f"/home/me/{name}.py", "exec"), vars(module))
    return module


def doubled(x: float) -> float:
    return x * 2


def tripled(x: float) -> float:
    return x * 3


class Wrapper:
    def __init__(self, inner: Callable[[float], float]) -> None:
        self.inner = inner

    def __call__(self, x: float) -> float:
        return self.inner(x)

    def step(self, x: float) -> float:
        return self.inner(x)


def by_global(inner: Callable[[float], float]) -> Any:
    module = module_of("def step(model, batch):\n    return helper(batch)")
    module.helper = inner  # type: ignore[attr-defined]
    return module.step


def by_module(inner: Callable[[float], float]) -> Any:
    helpers = ModuleType("my_helpers")
    helpers.scale = inner  # type: ignore[attr-defined]
    helpers.unused = object()  # type: ignore[attr-defined]
    module = module_of("def step(model, batch):\n    return helpers.scale(batch)")
    module.helpers = helpers  # type: ignore[attr-defined]
    return module.step


def by_closure(inner: Any) -> Any:
    return lambda model, batch: inner(batch)


def by_default(inner: Callable[[float], float]) -> Any:
    def step(model: object, batch: float, inner: Callable[[float], float] = inner) -> float:
        return inner(batch)

    return step


def by_decorator(inner: Callable[[float], float]) -> Any:
    return torch.no_grad()(inner)


WAYS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda inner: inner,
    "global": by_global,
    "module": by_module,
    "closure": by_closure,
    "default argument": by_default,
    "partial": lambda inner: functools.partial(Wrapper.step, inner),
    "nested partial": lambda inner: functools.partial(by_closure(inner), None),
    "bound method": lambda inner: Wrapper(inner).step,
    "callable object": Wrapper,
    "attribute of an object in a list": lambda inner: by_closure([SimpleNamespace(run=inner)]),
    "decorator of torch": by_decorator,
    "functools.cache": functools.cache,
}


@pytest.mark.parametrize("way", WAYS)
def test_f57_code_that_is_reached_counts(way: str) -> None:
    assert lines(step_fn=WAYS[way](doubled)) != lines(step_fn=WAYS[way](tripled))
    assert lines(step_fn=WAYS[way](doubled)) == lines(step_fn=WAYS[way](doubled))


class Net(nn.Module):
    flag = True

    def __init__(self, reps: int = 1, **more: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
        self.reps, self.step_count, self.seen = reps, 0, {"n": 0}
        self.last: float | None = None
        for name, value in more.items():
            setattr(self, name, value)

    def set_reps(self, reps: int) -> None:
        self.reps = reps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step_count += 1
        self.seen["n"] += 1
        self.keep(x)
        for _ in range(self.reps):
            x = self.inner(x)
        return x

    def keep(self, x: torch.Tensor) -> None:
        self.last = x.sum().item()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"reps": 1}, {"reps": 300}),
        ({"mode": "fast"}, {"mode": "slow"}),
        ({"sizes": [1, 2]}, {"sizes": [2, 1]}),
        ({"config": SimpleNamespace(depth=1)}, {"config": SimpleNamespace(depth=2)}),
        ({"config": {"a": {"b": (1, None)}}}, {"config": {"a": {"b": (1, 2.0)}}}),
        ({"names": {"a", "b"}}, {"names": {"a", "c"}}),
        ({"kind": torch.float32}, {"kind": torch.float16}),
        ({"table": torch.zeros(3)}, {"table": torch.zeros(4)}),
        ({"run": doubled}, {"run": tripled}),
    ],
)
def test_f57_plain_attributes_of_modules_count(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert lines(model=Net(**one)) != lines(model=Net(**other))
    assert lines(model=Net(**one)) == lines(model=Net(**one))


def test_options_of_installed_modules_count() -> None:
    assert lines(model=nn.Sequential(nn.Dropout(0.1))) != lines(model=nn.Sequential(nn.Dropout(0.2)))


def test_f57_what_a_step_assigns_does_not_count_and_what_a_setter_assigns_does() -> None:
    model = Net()

    def told() -> list[str]:
        return between(lambda: model(torch.randn(1, 2)), model=model)

    before = told()
    assert (model.step_count, model.last is None) == (1, False)
    assert told() == before
    assert lines(model=model) != before
    model.set_reps(2)
    assert told() != before


def test_f57_a_global_counter_and_a_counter_of_a_callable_do_not_count() -> None:
    class Step:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, model: object, batch: object) -> None:
            global COUNT  # noqa: PLW0603
            COUNT += 1
            self.calls += 1

    step = Step()
    before = between(lambda: step(None, None), step_fn=step)
    assert before == between(lambda: step(None, None), step_fn=step)
    assert COUNT == 2
    assert lines(step_fn=step) != before


def test_f57_what_steps_have_changed_is_left_out() -> None:
    model = Net()
    before = reach(model=model)
    model(torch.ones(1, 2))
    after = reach(model=model)
    assert {name for name, _ in before.items() - after.items()} == {"model.seen", "model.step_count"}


def test_weights_modes_and_hook_numbers_do_not_count() -> None:
    one, other = Net(), Net()
    before = lines(model=one)
    one.inner.register_forward_hook(lambda *_: None).remove()
    handles = [net.inner.register_forward_hook(print_shape) for net in (one, other)]
    with torch.no_grad():
        next(one.parameters()).add_(1)
    one.eval()
    assert lines(model=one) == lines(model=other) != before
    for handle in handles:
        handle.remove()


def print_shape(*_: object) -> None:
    raise AssertionError("never called")


def test_what_is_huge_circular_or_opaque_is_no_obstacle() -> None:
    ring: list[Any] = []
    ring.append(ring)
    loop: dict[str, Any] = {"f": lambda: loop}
    model = Net(
        ring=ring,
        loop=loop,
        lock=threading.Lock(),
        data=list(range(10**6)),
        objects=[Wrapper(doubled)] * 10,
        it=iter("a"),
    )
    model.myself = [model]  # type: ignore[assignment]
    assert lines(model=model) == lines(model=model)


def test_loss_functions_of_torch_differ() -> None:
    found = [tuple(lines(loss_fn=loss)) for loss in (F.cross_entropy, F.mse_loss, torch.sum, torch.mean, nn.MSELoss())]
    assert len(set(found)) == len(found)


def test_every_process_finds_the_same() -> None:
    code = (
        "from tests.identity import test_reach as t; "
        "print(t.lines(model=t.Net(names={'a', 'b', 'c'}, run=t.doubled), step_fn=t.by_module(t.doubled), "
        "f=t.Wrapper(t.F.relu)))"
    )
    found = printed_by_two_processes(code)
    assert len(found) == 1
    assert "0x" not in found.pop()


def test_a_model_of_the_size_of_bert_takes_milliseconds() -> None:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 24)
    model = Net(layers=layers, config=SimpleNamespace(**{f"option_{i}": i for i in range(100)}))
    best_s = []
    for _ in range(5):
        began = time.process_time()
        found = reach(model=model)
        best_s.append(time.process_time() - began)
    assert len(found) > 300
    assert min(best_s) < 0.05


def test_a_name_has_the_version_where_the_package_says_one() -> None:
    assert named("torch.nn", "Linear") == f"torch.nn.Linear {torch.__version__}"
    assert named("functools", "partial") == "functools.partial "


class PartsSlotted:
    __slots__ = ("__private", "shown")

    def __init__(self) -> None:
        self.shown, self.__private = 1, 2


@dataclass
class PartsSettings:
    rate: float = 0.1


class NetConfig:
    def to_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("value", [PartsSettings(), SimpleNamespace(a=1), NetConfig()])
def test_records_of_settings_are_configurations(value: object) -> None:
    assert is_configuration(value)


@pytest.mark.parametrize("value", [PartsSlotted(), 3, [1]])
def test_other_objects_are_none(value: object) -> None:
    assert not is_configuration(value)


def test_positions_are_whole_numbers_in_data_of_torch() -> None:
    subset = Subset(Rows(), [])
    assert are_drawn_positions(subset, [3, 1, 2])
    assert are_drawn_positions(subset, range(4))
    assert not are_drawn_positions(subset, [0.5])
    assert not are_drawn_positions(subset, "abc")
    assert not are_drawn_positions(Rows(), [3, 1, 2])


def test_a_function_is_found_in_wrappers_that_are_known() -> None:
    assert wrapped_function(np.vectorize(abs)) is abs
    assert wrapped_function(object()) is None


def test_a_variable_that_is_not_bound_yet_is_no_obstacle() -> None:
    def step() -> int:
        return later

    told = lines(step_fn=step)
    later = 3
    assert told != lines(step_fn=step)


def test_a_number_in_an_attribute_named_hash_is_taken_as_the_result_of_hash() -> None:
    told = lines(thing=SimpleNamespace(_original_object_hash=hash("a"), hash_=3, config_hash="5f3a", hash_buckets=64))
    assert [line for line in told if "hash" in line] == ["thing.config_hash='5f3a'", "thing.hash_buckets=64"]


class Colour(enum.Enum):
    RED = 1


class Number(int):
    """Writes itself in its own way."""

    def __repr__(self) -> str:
        return f"a number {id(self)}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("three", "'three'"),
        (torch.float16, "torch.float16"),
        (torch.ones(2, 3), "Tensor(2, 3)torch.float32"),
        (np.float32(0.5), "float32 0.5"),
        (Colour.RED, "Colour.RED"),
        (re.compile("a+"), "Pattern a+"),
        (pathlib.PurePosixPath("a/b"), "PurePosixPath a/b"),
        (Number(7), "Number 7"),
        ([1, (2, "b")], "list(1, (2, 'b'))"),
        ({"b": 2, "a": 1}, "dict(('a', 1), ('b', 2))"),
        ({3, 1, 2}, "set(1, 2, 3)"),
        (list(range(MOST_ITEMS + 1)), f"list of {MOST_ITEMS + 1}"),
    ],
    ids=range(13),
)
def test_a_plain_value_has_a_text(value: Any, text: str) -> None:
    assert plain(value) == text


def test_what_is_not_plain_has_none_nor_has_what_holds_it() -> None:
    assert plain(object()) is None
    assert plain([1, object()]) is None


def test_a_very_long_text_is_its_length() -> None:
    first, second = "a" * 2000, "a" * 1999 + "b"
    assert plain(first) != plain(second)
    assert plain("a" * 2**21) == f"str of {2**21}"


def documented() -> int:
    """Says something."""
    return 3


def undocumented() -> int:
    return 3


def assigning(owner: Any) -> None:
    owner.seen = torch.ones(1)


def test_docstrings_do_not_count_and_code_does() -> None:
    assert code_text(documented.__code__) == code_text(undocumented.__code__)
    assert code_text(documented.__code__) != code_text(assigning.__code__)


def test_a_set_has_the_same_text_whatever_the_hash_seed() -> None:
    code = "from autofit.identity import plain; print(plain({'b', 'a', 'c', ('x', 1)}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
