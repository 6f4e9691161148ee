"""Overhead of `TrainStep` over a hand-written loop with the same techniques, of the guard, and of `import autofit`.

Both loops train copies of one model on the same batches, in interleaved ABBA blocks. The figure is the median of the
paired ratios. Required: a median over the models of at most 1.01; `import autofit` takes less than 50 ms on top of
Python; `autofit --help` takes less than 150 ms in total; neither imports torch. Taking the guard's snapshot, restoring
the state and verifying it takes at most 1 s of CPU time per GB of state, and at most 0.2 s for a small model.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from autofit.core.plan import Plan
from autofit.guard import Guard
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, StepBatch
from scripts.bench import report

BLOCK = 6
DROPPED = 1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mix = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.mix(y, y, y, need_weights=False)[0]
        out: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return out


class Transformer(nn.Module):
    def __init__(self, width: int = 128, depth: int = 4, by_hand: int = 0) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if index < self.by_hand else block(x)
        out: torch.Tensor = self.head(x.mean(1))
        return out


def convnet() -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))


@dataclass(frozen=True)
class Case:
    name: str
    model: Callable[[], nn.Module]
    sample: tuple[int, ...]
    classes: int
    size: int
    plan: dict[str, Any]
    clip: float | None = None
    by_hand: int = 0


CASES = (
    Case("mlp fp32", mlp, (256,), 64, 256, {}),
    Case("mlp fp16 scaler clip", mlp, (256,), 64, 256, {"precision": "fp16"}, clip=1.0),
    Case("convnet channels_last", convnet, (3, 32, 32), 10, 32, {"memory_format": "channels_last"}),
    Case("transformer bf16 x4", Transformer, (64, 128), 64, 8, {"precision": "bf16", "accumulation_steps": 4}),
    Case("transformer checkpointed fused", Transformer, (64, 128), 64, 16,
         {"checkpointed_blocks": 4, "optimizer_implementation": "fused"}, by_hand=4),
)  # fmt: skip


def by_hand(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Sequence[Any]], torch.Tensor]:
    """Returns a carefully hand-written loop for the case."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.plan.get("precision", ""))
    scaler = torch.amp.GradScaler("cpu") if dtype is torch.float16 else None
    last = case.plan.get("memory_format") == "channels_last"
    if last:
        cast(Any, model).to(memory_format=torch.channels_last)

    def step(batches: Sequence[Any]) -> torch.Tensor:
        total = torch.zeros(())
        for x, y in batches:
            inputs = x.to(memory_format=torch.channels_last) if last else x
            with torch.autocast("cpu", dtype=dtype) if dtype is not None else nullcontext():
                loss = F.cross_entropy(model(inputs), y) / len(batches)
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            total += loss.detach()
        if case.clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def pair(case: Case) -> tuple[Callable[[], float], Callable[[], float]]:
    """Returns autofit's loop and the hand-written one; each call runs a block and returns its median step time."""
    torch.manual_seed(0)
    model = case.model()
    twin = copy.deepcopy(model)
    if isinstance(twin, Transformer):
        twin.by_hand = case.by_hand
    count = case.plan.get("accumulation_steps", 1)
    batches = [
        (torch.randn(case.size, *case.sample), torch.randint(0, case.classes, (case.size,))) for _ in range(count)
    ]
    plan = Plan(values={"micro_batch_size": case.size, "accumulation_steps": 1, **case.plan})
    draft = Draft(
        model=model,
        loss=resolve_loss(model, batches[0], loss_fn=F.cross_entropy),
        optimizer=torch.optim.AdamW(model.parameters()),
        device=torch.device("cpu"),
        max_grad_norm=case.clip,
    )
    ours = prepare(plan, draft, members())
    fused = case.plan.get("optimizer_implementation") == "fused"
    theirs = by_hand(case, twin, torch.optim.AdamW(twin.parameters(), fused=fused or None))
    batch: Any = StepBatch.of(batches) if count > 1 else batches[0]
    return (lambda: _block(lambda: ours(batch))), (lambda: _block(lambda: theirs(batches)))


def _block(step: Callable[[], Any]) -> float:
    times = []
    for _ in range(BLOCK):
        began = perf_counter()
        step()
        times.append(perf_counter() - began)
    return median(times[DROPPED:])


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Returns the paired ratios of the case."""
    ours, theirs = pair(case)
    ours(), theirs()
    ratios = []
    for index in range(rounds):
        first, second = (ours, theirs) if index % 2 == 0 else (theirs, ours)
        a, b = first(), second()
        ratios.append(a / b if index % 2 == 0 else b / a)
    return {"case": case.name, "ratio": median(ratios), "ratios": ratios}


def guarded(model: nn.Module, runs: int) -> float:
    """Returns the least CPU time, in seconds, of a snapshot and of restoring a model that was trained."""
    times = []
    for _ in range(runs):
        began = process_time()
        guard = Guard(model)
        taken = process_time() - began
        for parameter in model.parameters():
            parameter.data.add_(1)
        began = process_time()
        with guard:
            pass
        times.append(taken + process_time() - began)
    return min(times)


def guard_costs(runs: int) -> dict[str, float]:
    """Returns the cost of the guard for a small model, and for each further GB of a large one."""
    small_s = guarded(Transformer(), runs)
    large = nn.ParameterList(torch.ones(1 << 24) for _ in range(8))
    return {"small_s": small_s, "per_gb_s": guarded(large, runs) / sum(p.nbytes for p in large.parameters()) * 1e9}


def start_up(runs: int) -> dict[str, Any]:
    """Returns median seconds for starting Python, for importing autofit on top of that, and for the help page."""
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import autofit"],
        "help": [sys.executable, "-m", "autofit", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            began = perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(perf_counter() - began)
    code = "import sys, autofit, autofit.cli; autofit.cli.parser().format_help(); print('torch' in sys.modules)"
    loads = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return {
        "python_s": median(times["python"]),
        "import_s": median(b - a for a, b in zip(times["python"], times["import"], strict=True)),
        "help_s": median(times["help"]),
        "loads_torch": loads == "True",
    }


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of blocks for each model")
    given = parser.parse_args()
    cases = []
    for case in CASES:
        cases.append(measure(case, given.rounds))
        print(f"{case.name:32s} {cases[-1]['ratio']:.4f}", flush=True)
    start, guard = start_up(15), guard_costs(5)
    ratio = median(case["ratio"] for case in cases)
    passed = guard["small_s"] <= 0.2 and guard["per_gb_s"] <= 1.0
    passed = (
        passed and ratio <= 1.01 and start["import_s"] < 0.05 and start["help_s"] < 0.15 and not start["loads_torch"]
    )
    summary = (
        f"overhead: TrainStep / hand-written {ratio:.4f} (median of {len(cases)} models); import autofit "
        f"+{start['import_s'] * 1e3:.0f} ms, autofit --help {start['help_s'] * 1e3:.0f} ms, "
        f"torch {'loaded' if start['loads_torch'] else 'not loaded'}; guard {guard['per_gb_s']:.2f} s/GB, "
        f"{guard['small_s'] * 1e3:.0f} ms for a small model: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"ratio": ratio, "cases": cases, "start": start, "guard": guard}, given.json, passed)


if __name__ == "__main__":
    main()
