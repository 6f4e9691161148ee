"""What counts as the same workload: code and plain attributes that are reached, and nothing that training changes."""

import functools
import json
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CellType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

from autofit.identity.identity import digest
from autofit.identity.reachable_code import (
    MOST_OBJECTS,
    ReachedFacts,
    attributes_of,
    cell_content,
    codes_of,
    installed,
    is_configuration,
    is_drawn_positions,
    is_hash,
    is_part_of_class,
    named,
    of_package,
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


def test_what_a_method_counts_is_of_its_class_and_of_no_other() -> None:
    """A monitor's `self.steps += 1` made solvers of 2 and of 200 steps the same workload."""
    assert lines(model=Solver(2)) != lines(model=Solver(200))
    counted = Solver(2)
    counted(torch.ones(2))
    assert lines(model=counted) == lines(model=Solver(2))


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
    return facts.lines("code") + facts.lines("attributes")


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
    before = lines(model=model)
    model(torch.ones(1, 2))
    model.seen["n"] = 0  # a counter in a container: see below
    assert (model.step_count, model.last is None) == (1, False)
    assert lines(model=model) == before
    model.set_reps(2)  # named by no step
    assert lines(model=model) != before


def test_f57_a_global_counter_and_a_counter_of_a_callable_do_not_count() -> None:
    class Step:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, model: object, batch: object) -> None:
            global COUNT  # noqa: PLW0603
            COUNT += 1
            self.calls += 1

    step = Step()
    before = lines(step_fn=step)
    step(None, None)
    assert lines(step_fn=step) == before
    assert COUNT == 1


def test_f57_what_steps_have_changed_is_left_out() -> None:
    model = Net()
    before = reach(model=model)
    model(torch.ones(1, 2))
    after = reach(model=model)
    assert after != before  # the counter in a container
    assert {path for path in before.found if path not in after.stable(before).found} == {"model.seen"}
    assert isinstance(after.stable(before), ReachedFacts)


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
        "from tests.identity import test_reachable_code as t; "
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
        began = time.perf_counter()
        found = reach(model=model).found
        best_s.append(time.perf_counter() - began)
    assert 300 < len(found) < MOST_OBJECTS
    assert min(best_s) < 0.05


@pytest.mark.parametrize("file", [json.__file__, torch.__file__, "<frozen os>", "/x/site-packages/a/b.py"])
def test_what_was_installed_is_known_by_its_file(file: str) -> None:
    assert installed(file)


@pytest.mark.parametrize("file", [__file__, "<stdin>", "/home/me/train.py"])
def test_the_users_files_are_not(file: str) -> None:
    assert not installed(file)


@pytest.mark.parametrize(
    ("module", "belongs"),
    [
        ("torch.nn", True),
        ("json", True),
        ("builtins", True),
        (__name__, False),
        ("__main__", False),
        ("no_such", False),
    ],
)
def test_a_module_belongs_to_a_package_or_to_the_user(module: Any, belongs: bool) -> None:
    assert of_package(module) is belongs


def test_a_name_has_the_version_where_the_package_says_one() -> None:
    assert named("torch.nn", "Linear") == f"torch.nn.Linear {torch.__version__}"
    assert named("functools", "partial") == "functools.partial "


class PartsSlotted:
    __slots__ = ("__private", "shown")

    def __init__(self) -> None:
        self.shown, self.__private = 1, 2


class Refusing(PartsSlotted):
    def __init__(self) -> None:
        super().__init__()
        self.extra = 3

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not ask")


@dataclass
class PartsSettings:
    rate: float = 0.1


class NetConfig:
    def to_dict(self) -> dict[str, Any]:
        return {}


def test_slots_private_ones_too_and_attributes_are_read() -> None:
    assert attributes_of(PartsSlotted()) == {"shown": 1, "__private": 2}
    assert attributes_of(Refusing()) == {"extra": 3, "shown": 1, "__private": 2}


def test_of_a_class_its_own_names_count_and_special_ones_only_if_they_are_code() -> None:
    assert is_part_of_class("rate", 1)
    assert is_part_of_class("__call__", lambda self: None)
    assert not is_part_of_class("__doc__", "text")
    assert not is_part_of_class("__special__", 1)


def test_code_is_found_inside_pythons_own_decorators() -> None:
    def plain(self: object) -> None: ...

    cached: Any = functools.cached_property(plain)
    values: list[Any] = [plain, property(plain), staticmethod(plain), classmethod(plain), cached]
    for value in values:
        assert codes_of(value) == [plain.__code__]
    assert codes_of(print) == []


@pytest.mark.parametrize("value", [PartsSettings(), SimpleNamespace(a=1), NetConfig()])
def test_records_of_settings_are_configurations(value: object) -> None:
    assert is_configuration(value)


@pytest.mark.parametrize("value", [PartsSlotted(), 3, [1]])
def test_other_objects_are_none(value: object) -> None:
    assert not is_configuration(value)


def test_positions_are_whole_numbers() -> None:
    assert is_drawn_positions([3, 1, 2])
    assert is_drawn_positions(range(4))
    assert not is_drawn_positions([0.5])
    assert not is_drawn_positions("abc")


def test_a_function_is_found_in_wrappers_that_are_known() -> None:
    assert wrapped_function(functools.lru_cache(len)) is len
    assert wrapped_function(np.vectorize(abs)) is abs
    assert wrapped_function(object()) is None


def test_a_cell_may_be_empty() -> None:
    assert cell_content(CellType(7)) == 7
    assert cell_content(CellType()) is None


def test_a_number_in_an_attribute_named_hash_is_taken_as_the_result_of_hash() -> None:
    assert is_hash("_original_object_hash", hash("a"))
    assert is_hash("hash_", 3)
    assert not is_hash("config_hash", "5f3a")  # a digest as a text is the same in every process
    assert not is_hash("hash_buckets", 64)
