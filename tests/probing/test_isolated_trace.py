"""A trace leaves nothing behind in the user's objects, and cannot hang (promises 4 and 5)."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.errors import SpaceError, Untraceable
from autofit.memory.trace import Trace
from autofit.probing import isolated_trace as isolation
from autofit.probing.forked_trace import POSSIBLE, traced_apart
from autofit.tracing.fake_copy import fake_mode
from autofit.workloads.workload import Workload
from tests.memory.traces import Script
from tests.probing import targets

TABLE: dict[int, torch.Tensor] = {}
KEPT = [torch.ones(3)]
NAMES = ["q_proj", "v_proj"]
COUNTS = {"steps": 0}
SEEN = {"gelu"}
logger = logging.getLogger(__name__)


def small() -> Trace:
    script = Script(micro_batch_size=4)
    script.take(8)
    return script.trace()


def fails(error: BaseException) -> Callable[[], Trace]:
    def work() -> Trace:
        raise error

    return work


forked = pytest.mark.skipif(not POSSIBLE, reason="forks, which is done on Linux only")


@forked
def test_a_trace_comes_back_and_what_else_was_done_does_not() -> None:
    kept: list[int] = []

    def work() -> Trace:
        kept.append(1)
        return small()

    assert traced_apart(work, 60.0) == small()
    assert kept == []


@forked
def test_a_large_trace_comes_back_whole() -> None:
    script = Script()
    for size in range(200_000):
        script.take(size)
    found = script.trace()
    assert traced_apart(lambda: found, 60.0) == found


@forked
@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (Untraceable("no", "train.py:7"), Untraceable, r"no \(train\.py:7\)"),
        (SpaceError("no such k"), SpaceError, "no such k"),
        (KeyError("row"), Untraceable, "KeyError: 'row'"),
        (SystemExit(3), Untraceable, "SystemExit"),
    ],
)
def test_errors_come_back_as_they_are(error: BaseException, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        traced_apart(fails(error), 60.0)


@forked
def test_one_that_hangs_or_dies_is_given_up_and_leaves_no_process() -> None:
    began = time.monotonic()
    with pytest.raises(Untraceable, match="not done after 1 s"):
        traced_apart(lambda: time.sleep(600) or small(), 1.0)  # type: ignore[func-returns-value]  # sleep gives None
    assert time.monotonic() - began < 60
    with pytest.raises(Untraceable, match="its process died"):
        traced_apart(lambda: os._exit(1), 60.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def stateless(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def keeping(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    TABLE[len(batch[0])] = batch[0]
    return stateless(model, batch)


def workload(**more: object) -> Workload:
    return Workload(targets.mlp(), targets.vectors(), **more)  # type: ignore[arg-type]  # what each test is about


def test_functions_that_hold_nothing_are_self_contained() -> None:
    isolation.check_self_contained(workload(loss_fn=nn.functional.cross_entropy))
    isolation.check_self_contained(workload(loss_fn=nn.CrossEntropyLoss()))
    isolation.check_self_contained(workload(step_fn=stateless))
    isolation.check_self_contained(Workload(targets.Transformer(), targets.sentences(), step_fn=targets.token_mean))


def test_functions_that_hold_something_are_not() -> None:
    seen: list[torch.Tensor] = []

    def closing(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen.append(batch[0])
        return stateless(model, batch)

    class Bound:
        def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return outputs.mean()

    def filled(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return stateless(model, batch) + KEPT[0].sum()

    hooked = workload(step_fn=stateless)
    hooked.model.register_forward_hook(lambda module, given, found: seen.append(found))
    for unsafe, what in (
        (workload(step_fn=closing), "step_fn holds seen"),
        (workload(step_fn=filled), "step_fn holds KEPT, an object of type list"),
        (workload(loss_fn=Bound().loss), "loss_fn holds an object of type method"),
        (hooked, "a hook of the model holds seen"),
    ):
        with pytest.raises(Untraceable, match=what):
            isolation.check_self_contained(unsafe)


def logging_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    logger.debug("targets %s", NAMES)
    COUNTS["steps"] += 1
    SEEN.add("relu")
    NAMES.append("k_proj")
    return stateless(model, batch)


def test_a_logger_and_tables_of_names_do_not_forbid_a_trace_in_process() -> None:
    """B 17: diffusers' loggers and peft's lists; what a trace does to such a table is put back."""

    def work() -> Trace:
        logging_step(targets.mlp(), (torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)))
        return small()

    assert isolation.isolated(work, workload(step_fn=logging_step), on_host=False) == small()
    assert (["q_proj", "v_proj"], {"steps": 0}, {"gelu"}) == (NAMES, COUNTS, SEEN)
    assert isolation.check_self_contained(workload(step_fn=keeping)) == [TABLE]


def test_tables_are_put_back_where_a_trace_fails() -> None:
    def work() -> Trace:
        NAMES.clear()
        raise Untraceable("no", "train.py:7")

    with pytest.raises(Untraceable):
        isolation.isolated(work, workload(step_fn=logging_step), on_host=False)
    assert NAMES == ["q_proj", "v_proj"]


def test_a_fake_tensor_that_stays_is_noticed() -> None:
    before = list(isolation.fake_tensors())  # what torch.compile keeps of other tests
    isolation.check_nothing_left(before)
    with fake_mode():
        TABLE[0] = torch.empty(3)
    assert isinstance(TABLE[0], FakeTensor)
    try:
        with pytest.raises(Untraceable, match="1 fake tensors are kept by something outside the model"):
            isolation.check_nothing_left(before)
    finally:
        TABLE.clear()
    isolation.check_nothing_left(before)


def test_a_fake_tensor_that_was_there_before_a_trace_is_not_what_it_left() -> None:
    """What torch.compile keeps refused every trace in the process of a device after the first compiled plan."""
    with fake_mode():
        kept = torch.empty(3)
    assert isinstance(kept, FakeTensor)
    assert isolation.isolated(small, workload(step_fn=plain), on_host=False) == small()
    with pytest.raises(Untraceable, match="1 fake tensors are kept"):
        isolation.isolated(leaving, workload(step_fn=plain), on_host=False)
    TABLE.clear()


def leaving() -> Trace:
    with fake_mode():
        TABLE[0] = torch.empty(3)
    return small()


def plain(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@forked
def test_on_a_host_the_users_table_stays_as_it_is() -> None:
    def work() -> Trace:
        with fake_mode():
            TABLE[1] = torch.empty(3)
        return small()

    assert isolation.isolated(work, workload(step_fn=keeping), on_host=True) == small()
    assert not TABLE
