"""Temporary memory of CPU operators: allocated inside one call, besides the results, and released before it returns.

A trace does not show it, because it is allocated below the dispatcher. There is no formula either: oneDNN copies images
and weights to layouts that depend on the processor, the number of threads and the shape. So such an operator is really
run, once for each combination of shapes, on zeros, with a few samples, and the allocator's record is read (a few
milliseconds each). From four samples on, the temporary memory is affine in the number of samples. Fewer samples may be
computed in another way.
"""

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from autofit.devices.base import Device
from autofit.torch_internals import pytree

aten = torch.ops.aten

FEW, MANY = (4, 8), (16, 18)
"""Pairs of sample counts with which an operator is run. A batch smaller than the second count is run at its own size.
With one thread, oneDNN computes a pointwise convolution from 16 samples on (ConvParams::use_mkldnn in
Convolution.cpp)."""
HALF = (torch.bfloat16, torch.float16)
BATCHED: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
    aten.native_batch_norm_backward.default: (0, 1),
    aten.upsample_nearest2d.default: (0,),
    aten.upsample_bilinear2d.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0, 1, 7),
    aten.mean.dim: (0,),
    aten._safe_softmax.default: (0,),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3, 4, 5),
}
"""Operators that are run, with the positions of the arguments whose first dimension is the samples."""
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))
"""Operators that oneDNN computes in 16 bits. In 32 bits they need no temporary memory."""
MOST_FLOP = 2e8
"""Maximum size of a product that is run. The temporary memory of larger ones is small compared with their operands."""
MIXED = frozenset(
    (
        *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor),
        *(aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor),
    )
)
"""Operators that first convert operands of another type to the result's type (TensorIterator.cpp)."""


class HostTemporaries:
    """Finds the temporary memory of operators on a host, which meters it. Each kind of call is run once.

    `threads` is the number of threads that training uses. A forked process that traces has only one.
    """

    def __init__(self, device: Device, threads: int) -> None:
        self._device, self._threads = device, threads
        self._known: dict[Any, int] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
        """Returns the peak temporary bytes of a call; None for operators without temporary memory."""
        if func in MIXED:
            return _converted_bytes(args, out)
        if func in PRODUCTS:
            factors = [each for each in args if isinstance(each, torch.Tensor)][-2:]
            if factors[0].dtype not in HALF:
                return None
            flop = 2.0 * math.prod(factors[0].shape) * factors[1].shape[-1]
            return self._of(func, args, kwargs) if flop <= MOST_FLOP else 0
        batched = BATCHED.get(func)
        if batched is None:
            return None
        samples = args[0].shape[0] if args[0].dim() else 0
        small, large = self._samples(func, args, samples)
        if samples < large:
            return self._of(func, args, kwargs)
        low, high = (self._of(func, _cut(args, batched, size), kwargs) for size in (small, large))
        return max(low + (high - low) * (samples - small) // (large - small), 0)

    def _of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        key = (func, *(_sketch(leaf) for leaf in pytree.tree_leaves((args, kwargs))))
        if key not in self._known:
            self._known[key] = self._run(func, args, kwargs)
        return self._known[key]

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Runs a call on real tensors in a new thread and returns its temporary bytes; 0 if it fails.

        Dispatch modes do not apply in a new thread. In addition, this process may be a fork without OpenMP's threads:
        a new thread gets new ones, while the forked thread would wait for the old ones.
        """
        found = 0

        def run() -> None:
            nonlocal found
            if torch.get_num_threads() != self._threads:  # in a fork, where a new thread has OpenMP threads of its own
                torch.set_num_threads(self._threads)
            with suppress(RuntimeError):  # of a call that cannot be reproduced on zeros: its temporaries stay unknown
                real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, _zeros, (args, kwargs))
                with torch.no_grad(), self._device.meter(lambda: 0) as reading:
                    results = func(*real_args, **real_kwargs)
                storages = [t.untyped_storage() for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
                kept = {storage.data_ptr(): storage.nbytes() for storage in storages}
                assert reading.memory is not None, "the meter has filled its reading"
                found = reading.memory.allocated_bytes - sum(kept.values())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return max(found, 0)

    def _samples(self, func: Any, args: tuple[Any, ...], samples: int) -> tuple[int, int]:
        """Returns the two sample counts with which a call on `samples` samples is run."""
        weight = {aten.convolution.default: 1, aten.convolution_backward.default: 2}.get(func)
        pointwise = weight is not None and all(side == 1 for side in args[weight].shape[2:])
        return MANY if pointwise and samples >= MANY[0] and self._threads == 1 else FEW


def _zeros(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype).zero_()


def _cut(args: tuple[Any, ...], batched: Sequence[int], samples: int) -> tuple[Any, ...]:
    """Returns the arguments with `samples` samples, as tensors without data."""
    cut = list(args)
    for place in batched:
        whole = args[place]
        shape = (samples, *whole.shape[1:])
        cut[place] = torch.empty_strided(shape, whole.stride(), dtype=whole.dtype, device="meta")
    return tuple(cut)


def _sketch(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype
    return str(leaf)


def _converted_bytes(args: tuple[Any, ...], out: torch.Tensor) -> int | None:
    """Returns the bytes of operands that are first converted to the result's type; None if there are none."""
    operands = [each for each in args[:2] if isinstance(each, torch.Tensor) and each.dim()]
    converted: int = sum(each.numel() for each in operands if each.dtype is not out.dtype)
    return converted * out.element_size() or None
