"""A trace in a forked process computes what has no fake kernel, in one thread: with more it waited for ever."""

import torch

from autofit.core.trace import Kind, Mark, Tensors, Trace
from autofit.probing.tracing import apart


def test_a_parallel_kernel_ends_in_the_forked_process() -> None:
    """Fused SGD over large weights took the whole 45 s of a trace, and its plan had no estimate."""
    torch.ones(2**20).exp()  # starts OpenMP's threads, which a fork does not have

    def work() -> Trace:
        torch.ones(2**20).exp()
        tensors = Tensors(sizes=(4,), kinds=(Kind.BATCH,), origins=(-1,))
        return Trace(micro_batch_size=1, tensors=tensors, events=(0,), marks=(Mark(name="end", event=1),))

    threads = torch.get_num_threads()
    assert apart.traced_apart(work, 20.0).tensors.sizes == (4,)
    assert torch.get_num_threads() == threads
