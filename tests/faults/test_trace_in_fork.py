"""A trace in a forked process computes what has no fake kernel, in one thread: with more it waited for ever."""

from collections.abc import Iterator

import pytest
import torch

from autofit.memory.trace import Kind, Mark, Tensors, Trace
from autofit.tracing import isolation

LARGE = 2**22
"""Elements of which torch shares out the work among its threads."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_parallel_kernel_ends_in_the_forked_process() -> None:
    """Fused SGD over large weights took the whole 45 s of a trace, and its plan had no estimate."""
    torch.ones(LARGE).exp()  # starts OpenMP's threads, which a fork does not have

    def work() -> Trace:
        torch.ones(LARGE).exp()
        tensors = Tensors(sizes=(4,), kinds=(Kind.BATCH,), origins=(-1,))
        return Trace(micro_batch_size=1, tensors=tensors, events=(0,), marks=(Mark(name="end", event=1),))

    assert isolation.trace_in_fork(work, 20.0).tensors.sizes == (4,)
    assert torch.get_num_threads() == 2
