"""Lists the operators of a workload whose memory on this CUDA device differs from that in a trace.

    python -m scripts.bench.memory.operators train.py:make_workload [knob=value ...]
    python -m scripts.bench.memory.operators --sweep [--stand-in PYTHON] [--json FILE] [NAME ...]

The first command measures each operator of one real training step by itself. It compares the operator's temporary
memory at its peak with the rule in `autofit.tracing.cuda.temporaries`, and the strides of its results with those of
fake tensors. Run it for each new architecture: it prints what a trace gets wrong. The exit code is 1 if an operator
differs by more than 1 MiB.

The second command tries about 340 operators one by one, each between a cheap matrix product and a mean, in float32 and
under bfloat16 autocast. It compares the traced peak of each step with that of the real allocator (see `sweep.py`). The
exit code is 1 if an operator is wrong that is not a known case.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from autofit import devices
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.opening import place
from autofit.strategies import members
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.results import laid_out
from autofit.tracing.cuda.temporaries import temporary_steps
from autofit.workloads.factory import make
from autofit.workloads.loss import resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload
from scripts.bench.memory.operators import sweep

MIB = 2**20


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Measures each operator; `found` holds (measured, by the rule, arguments, strides) by operator, if they differ."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.found: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
        self._chip, self._device = Chip.of(device), device
        self._module = torch.get_device_module(device)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, before = kwargs or {}, self._requested("current")
        strides = self._fake_strides(func, args, kwargs)
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        self._module.reset_peak_memory_stats(self._device)
        out = func(*args, **kwargs)
        results = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.device.type == "cuda"]
        new = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in results}
        taken = self._requested("peak") - before - sum(size for key, size in new.items() if key not in given)
        wanted = most(temporary_steps(self._chip, func, args, out)) if results else 0
        real = str([tuple(x.stride()) for x in results])
        if taken != wanted or strides not in ("", real):
            shapes = [(tuple(x.shape), x.dtype) for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.found[func.name()].append((taken, wanted, str(shapes[:3]), "" if strides == real else strides + real))
        return out

    def _fake_strides(self, func: Any, args: Any, kwargs: Any) -> str:
        """Returns the strides of the results of fake tensors, or "" if they are not known."""
        if func._schema.is_mutable or torch.Tag.data_dependent_output in func.tags:
            return ""
        try:
            with self._fake:
                copied = tree_map(lambda x: self._fake.from_tensor(x) if isinstance(x, torch.Tensor) else x, args)
                out = laid_out(func, copied, func(*copied, **kwargs))
        except Exception:  # noqa: BLE001  # a trace reports by itself what fake tensors cannot do
            return ""
        leaves = [x for x in tree_leaves(out) if isinstance(x, FakeTensor) and x.device.type == "cuda"]
        return str([tuple(x.stride()) for x in leaves])

    def _requested(self, which: str) -> int:
        return int(self._module.memory_stats(self._device)[f"requested_bytes.all.{which}"])


def most(steps: tuple[int | None, ...]) -> int:
    """Returns the peak of an operator's allocations and releases."""
    held: list[int] = []
    now = peak = 0
    for step in steps:
        if step is not None:
            held += [step] if step >= 0 else []
            now += step if step >= 0 else -held[~step]
            peak = max(peak, now)
    return peak


def swept(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.memory.operators --sweep")
    parser.add_argument("names", nargs="*", help="use only these operators")
    parser.add_argument("--stand-in", metavar="PYTHON", default=sys.executable, help="a Python that sees no device")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, default=Path("operators.json"), help="write all figures to this file"
    )
    given = parser.parse_args(arguments)
    return int(sweep.sweep(given.json, given.stand_in, given.names) > 0)


def main() -> int:
    if "--sweep" in sys.argv:
        return swept([each for each in sys.argv[1:] if each != "--sweep"])
    device = devices.choose("cuda")
    workload = Workload(**{k: v for k, v in make(sys.argv[1]).items() if k in Workload.__dataclass_fields__})
    values = dict(pair.split("=", 1) for pair in sys.argv[2:])
    plan = Plan(values={name: int(value) if value.isdigit() else value for name, value in values.items()})
    meter = Meter(device.torch_device)
    place(workload, device, may_move=True)
    source = source_of(workload.loader, worst_case=workload.worst_case)
    batch = map_tensors(source.worst(source.user_batch_size), lambda tensor: tensor.to(device.torch_device))
    rule = resolve_loss(workload.model, batch, loss_fn=workload.loss_fn, step_fn=workload.step_fn)
    draft = Draft(workload.model, rule, workload.make_optimizer(), device.torch_device)
    with prepare(plan, draft, members()) as step:
        step(batch)
        step(batch)
        with meter:
            step(batch)
    for name, rows in sorted(meter.found.items(), key=lambda pair: -max(abs(row[0] - row[1]) for row in pair[1])):
        print(f"{name}: {len(rows)} calls differ")
        for taken, wanted, shapes, strides in sorted(set(rows), key=lambda row: -abs(row[0] - row[1]))[:3]:
            print(f"    measured {taken:,} bytes, by the rule {wanted:,}; {shapes} {strides}")
    return int(any(abs(row[0] - row[1]) > MIB for rows in meter.found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
