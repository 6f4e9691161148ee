"""What packing alone gains, and that it trains alike: an encoder and a decoder of `transformers`, on varying lengths.

The plan with and without packing runs in interleaved blocks. Then
both train the same steps from the same weights without dropout. Required: it is slower nowhere beyond noise, and losses
differ by rounding.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autofit.core.briefing import Options
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.factory import as_arguments
from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload
from scripts.bench import report, workloads
from scripts.bench.gain import compare, load

SIZES = (8, 16)
STEPS = 6
SAME = 1e-5
"""Largest relative difference of a loss. Another order of float32 sums changes about 1e-7 of it."""


def _bert() -> dict[str, Any]:
    return as_arguments(load("huggingface").make_workload(), "huggingface")


CASES: dict[str, Callable[[], dict[str, Any]]] = {"bert": _bert, "gpt": workloads.gpt_varied}


def plan(size: int, packing: bool) -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "packing": packing})


def losses(make: Callable[[], dict[str, Any]], size: int, packing: bool) -> list[float]:
    """Returns the losses of a few steps without dropout."""
    torch.manual_seed(0)
    workload = Workload(**make())
    source = source_of(workload.loader)
    model = workload.model.eval()
    draft = Draft(
        model, loss_of(workload, source, torch.device("cpu")), _sgd(model), torch.device("cpu"), varies=source.varies
    )
    with prepare(plan(size, packing), draft, members()) as step:
        return [float(step(StepBatch.of([batch]))) for batch in source.typical(size, STEPS)]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def measure(name: str, size: int, pairs: int) -> dict[str, Any]:
    """Returns the gain of packing and the largest relative difference of a loss."""
    make = CASES[name]
    given = make() | {"global_batch_size": size}
    gain = compare(Workload(**given), plan(size, True), plan(size, False), Options(memory_budget="4GiB"), pairs)
    both = zip(losses(make, size, True), losses(make, size, False), strict=True)
    apart = max(abs(packed - plain) / abs(plain) for packed, plain in both)
    print(f"{name:5s} micro batch {size:2d}: {gain}; losses differ by {apart:.1e}", flush=True)
    return {
        "case": name,
        "size": size,
        "gain": gain.model_dump(),
        "apart": apart,
        "ok": gain.high >= 1 and apart < SAME,
    }


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks in each comparison")
    given = parser.parse_args()
    cases = [measure(name, size, given.pairs) for name in CASES for size in SIZES]
    low, high = (pick(case["gain"]["value"] for case in cases) for pick in (min, max))
    passed = all(case["ok"] for case in cases)
    apart = max(case["apart"] for case in cases)
    summary = f"packing: {low:.2f}x to {high:.2f}x on {len(CASES)} models; losses differ by at most {apart:.1e}"
    report.finish(f"{summary}: {'ok' if passed else 'MISSED'}", {"cases": cases}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
