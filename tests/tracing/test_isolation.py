"""A trace leaves nothing behind in the user's objects, and cannot hang (promises 4 and 5)."""

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.errors import Untraceable
from autofit.memory.trace import Trace
from autofit.tracing import isolation
from autofit.tracing.fake_copy import fake_mode
from autofit.tracing.isolation import IS_SUPPORTED
from autofit.tracing.static_memory import check_self_contained
from autofit.workloads.workload import Workload
from tests.memory.traces import Script
from tests.probing import targets

TABLE: dict[int, torch.Tensor] = {}
NAMES = ["q_proj", "v_proj"]
COUNTS = {"steps": 0}
SEEN = {"gelu"}
logger = logging.getLogger(__name__)


def small() -> Trace:
    script = Script(micro_batch_size=4)
    script.take(8)
    return script.trace()


forked = pytest.mark.skipif(not IS_SUPPORTED, reason="forks, which is done on Linux only")


def stateless(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def keeping(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    TABLE[len(batch[0])] = batch[0]
    return stateless(model, batch)


def workload(**more: object) -> Workload:
    return Workload(targets.mlp(), targets.vectors(), **more)  # type: ignore[arg-type]  # what each test is about


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
    assert check_self_contained(workload(step_fn=keeping)) == [TABLE]


def test_tables_are_put_back_where_a_trace_fails() -> None:
    def work() -> Trace:
        NAMES.clear()
        raise Untraceable("no", "train.py:7")

    with pytest.raises(Untraceable):
        isolation.isolated(work, workload(step_fn=logging_step), on_host=False)
    assert NAMES == ["q_proj", "v_proj"]


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
