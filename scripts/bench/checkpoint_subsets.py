"""The blocks that autofit checkpoints, against the best set of blocks found by trying all.

For each workload, the peak of every set of blocks is traced. The limit on memory lies half way between no checkpointing
and the lowest peak. autofit's set is the fewest blocks, in its order, that fit. Its rivals are the sets that fit and of
which no part fits: a larger set only costs more. All run in interleaved rounds. Then autofit's set and the fastest
rival run again, since the rival was chosen by its noise too. Required: autofit's set takes at most 2 % more time per
step than the fastest rival, beyond noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from time import perf_counter
from typing import Any

import torch

from autofit import devices
from autofit.core.answer import Ratio
from autofit.core.block_order import read_order, written_order
from autofit.core.briefing import Options
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.units import format_bytes
from autofit.memory.peak import memory_use
from autofit.prepare import prepare
from autofit.probing.local_bench import LocalBench
from autofit.search.race import pair
from autofit.strategies import members
from autofit.workloads.batches import BatchSource
from autofit.workloads.factory import as_arguments
from autofit.workloads.first_loss import loss_of
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload
from scripts.bench import gain, report, workloads

MOST_EXCESS = 0.02
MOST_BLOCKS = 6
STEPS = 3
"""Steps of a timed block, after one that is not timed."""

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A workload.

    Attributes:
        name: name of the workload.
        make: makes the workload, or the arguments of `tune()`.
        micro_batch_size: samples per step. None uses the loader's batch.
    """

    name: str
    make: Callable[[], Any]
    micro_batch_size: int | None = None


CASES = (
    Case("gpt", lambda: gain.load("gpt").make_workload(), 16),
    Case("unet", workloads.unet),
    Case("resnet", workloads.resnet),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The sets of blocks of one workload.

    Attributes:
        order: autofit's order of the blocks.
        peaks: traced peak of each set, in bytes.
        limit_bytes: the limit on memory.
        chosen: the fewest blocks in autofit's order that fit.
        rivals: the sets that fit, without any of which a part fits. `chosen` may be one of them.
    """

    order: Blocks
    peaks: dict[Blocks, int]
    limit_bytes: int
    chosen: Blocks
    rivals: tuple[Blocks, ...]


def plan_of(chosen: Blocks, order: Blocks, size: int) -> Plan:
    """Returns the plan that checkpoints these blocks."""
    rest = [block for block in order if block not in chosen]
    return Plan(
        values={
            MICRO_BATCH_SIZE: size,
            ACCUMULATION_STEPS: 1,
            "checkpointed_blocks": len(chosen),
            "checkpoint_order": written_order([*chosen, *rest]),
        }
    )


def choice_of(workload: Workload, size: int) -> Choice:
    """Traces every set of blocks of a workload."""
    options = Options(strategies=("batching", "checkpointing"))
    with LocalBench(workload, devices.choose("cpu"), options) as bench:
        space, account = bench.briefing.space, bench.briefing.account
        assert account is not None, "the host has an account"
        count = next(int(knob.values[-1]) for knob in space.knobs if knob.name == "checkpointed_blocks")
        if count > MOST_BLOCKS:
            raise SystemExit(f"found {count} blocks; expected at most {MOST_BLOCKS}, whose sets can all be tried")
        order = read_order(space.baseline.values.get("checkpoint_order", "")) or tuple(range(count))
        sets = [chosen for length in range(count + 1) for chosen in combinations(range(count), length)]
        peaks = {chosen: memory_use(bench.trace(plan_of(chosen, order, size)), account).judged_bytes for chosen in sets}
    limit = (peaks[()] + min(peaks.values())) // 2
    fitting = [chosen for chosen in sets if peaks[chosen] <= limit]
    rivals = [chosen for chosen in fitting if not any(set(other) < set(chosen) for other in fitting)]
    prefixes = [tuple(sorted(order[:length])) for length in range(count + 1)]
    chosen = next(prefix for prefix in prefixes if peaks[prefix] <= limit)
    return Choice(order, peaks, limit, chosen, tuple(rivals))


def timed(
    workload: Workload, sets: Sequence[Blocks], order: Blocks, size: int, rounds: int
) -> dict[Blocks, list[float]]:
    """Returns seconds per step of each set, measured in interleaved rounds of alternating direction."""
    source = BatchSource.of(workload.loader, worst_case=workload.worst_case)
    cpu = torch.device("cpu")
    batch, draft = StepBatch.alike([source.worst(size)]), Draft.of(workload, loss_of(workload, source, cpu), cpu)
    plans = {chosen: plan_of(chosen, order, size) for chosen in sets}
    times: dict[Blocks, list[float]] = {chosen: [] for chosen in sets}
    for index in range(rounds):
        for chosen in sets if index % 2 == 0 else reversed(sets):
            with prepare(plans[chosen], draft, members()) as step:
                step(batch)
                began = perf_counter()
                for _ in range(STEPS):
                    step(batch)
                times[chosen].append((perf_counter() - began) / STEPS)
    return times


def ratio_of(times: dict[Blocks, list[float]], ours: Blocks, other: Blocks) -> Ratio:
    """Returns the time per step of `ours` over that of `other`, with its interval."""
    logs = {chosen: [math.log(second) for second in seconds] for chosen, seconds in times.items()}
    return pair(logs[ours], logs[other]).ratio()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Returns the figures of one workload."""
    made = case.make()
    workload = made if isinstance(made, Workload) else Workload(**as_arguments(made, case.name))
    source = BatchSource.of(workload.loader, worst_case=workload.worst_case)
    size = case.micro_batch_size or source.user_batch_size
    choice = choice_of(workload, size)
    sets = list(dict.fromkeys([choice.chosen, *choice.rivals]))
    first = timed(workload, sets, choice.order, size, rounds)
    fastest = min(choice.rivals, key=lambda rival: ratio_of(first, rival, choice.chosen).value)
    ratio = Ratio(value=1, low=1, high=1)
    if fastest != choice.chosen:
        again = timed(workload, [choice.chosen, fastest], choice.order, size, 2 * rounds)
        ratio = ratio_of(again, choice.chosen, fastest)
    passed = ratio.low <= 1 + MOST_EXCESS
    print(
        f"{case.name:8s} order {choice.order}; below {format_bytes(choice.limit_bytes)} autofit takes {choice.chosen}, "
        f"the fastest of {len(choice.rivals)} is {fastest}: {ratio.value:.3f} of its time "
        f"({ratio.low:.3f} to {ratio.high:.3f})",
        flush=True,
    )
    return {
        "workload": case.name,
        "micro_batch_size": size,
        "order": choice.order,
        "limit_bytes": choice.limit_bytes,
        "chosen": choice.chosen,
        "fastest": fastest,
        "ratio": ratio.model_dump(),
        "sets": [
            {
                "blocks": blocks,
                "peak_bytes": peak,
                "time_over_chosen": ratio_of(first, blocks, choice.chosen).model_dump() if blocks in first else None,
            }
            for blocks, peak in choice.peaks.items()
        ],
        "ok": passed,
    }


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds; twice as many for the comparison")
    parser.add_argument("workloads", nargs="*", help="the workloads to run; all by default")
    given = parser.parse_args()
    cases = [measure(case, given.rounds) for case in CASES if not given.workloads or case.name in given.workloads]
    worst = max(case["ratio"]["value"] for case in cases)
    passed = all(case["ok"] for case in cases)
    summary = (
        f"checkpoint subsets: at most {worst - 1:.1%} more time per step than the best of all sets that fit, on "
        f"{len(cases)} workloads: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"cases": cases}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
