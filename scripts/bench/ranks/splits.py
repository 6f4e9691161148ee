"""Trainings on several ranks whose micro batches run out of memory on some of them, at random.

A fault strikes in the forward or backward pass of a micro batch, on one rank or on several, once or twice in a step.
Required of each seed: weights, buffers and optimizer state are those of the same training without a fault, up to
rounding, on all ranks, and no tensor is left over; or, where the micro batch cannot be cut or the error is another one,
the rank has its error, the others one that names the rank, within seconds, and the next step trains as if that one were
left out.

    python -m scripts.bench.ranks.splits --ranks 2 --seeds 40
"""

import argparse
import gc
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.splitting import Moving, Splitting, check_step
from autofit.strategies import members
from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, Ranks, StepBatch, TrainStep, storage_bytes
from autofit.workloads.tree import live_tensors
from autofit.workloads.votes import Votes
from autofit.workloads.workload import Workload
from scripts.bench.ranks.launching import launched

WIDTH, BLOCKS, CLASSES, STEPS = 384, 4, 4, 3
"""Each block has 0.6 MB of weights, so that `DistributedDataParallel` has two buckets."""
CPU = torch.device("cpu")
CLOSE = 1e-5
"""Largest relative L2 distance of weights and optimizer state."""
MOST_S = 10.0
"""Seconds within which an error of one rank ends the step on all."""
TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB (simulated)."
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicated": {"layout": "replicated"},
    "views": {"layout": "replicated", "gradient_as_bucket_view": True},
    "looking": {"layout": "replicated", "find_unused_parameters": True},
    "optimizer": {"layout": "optimizer"},
    "full": {"layout": "full"},
    "full, looking": {"layout": "full", "find_unused_parameters": True},
    "full, kept": {"layout": "full", "reshard_after_forward": False},
    "full, checkpointed": {"layout": "full", "checkpointed_blocks": 2},
}
IN_ROWS = {"hybrid": {"layout": "hybrid"}}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens where.

    Attributes:
        ranks: the ranks that it strikes.
        step: the step, from 0.
        micro_batch: the micro batch of the step, from 1.
        place: "forward" or "backward".
        block: the block of the model, from 0.
        times: how often it strikes: a second time in the first half.
        is_memory: whether memory runs out; otherwise it is another error.
        samples: samples of a micro batch on each rank.
    """

    ranks: tuple[int, ...] = ()
    step: int = 1
    micro_batch: int = 1
    place: str = "forward"
    block: int = 1
    times: int = 1
    is_memory: bool = True
    samples: tuple[int, ...] = (8, 8, 8, 8)

    @classmethod
    def of(cls, chance: random.Random, count: int, parts: int) -> "Fault":
        """Returns a fault at random. One in four ends the step."""
        sizes = chance.choice([(8, 8, 8, 8), (8, 5, 8, 1), (1, 8, 8, 8)])
        return cls(
            ranks=tuple(sorted(chance.sample(range(count), chance.choice([1, 1, 2])))),
            step=chance.randrange(STEPS),
            micro_batch=chance.randint(1, parts),
            place=chance.choice(["forward", "backward"]),
            block=chance.randrange(BLOCKS),
            times=chance.choice([1, 1, 2]),
            is_memory=chance.random() < 0.8,
            samples=sizes,
        )

    @property
    def ends(self) -> bool:
        """Whether the step cannot be done."""
        smallest = min((self.samples[rank] for rank in self.ranks), default=8)
        return bool(self.ranks) and (not self.is_memory or smallest < 2**self.times)


class Block(nn.Module):
    """A layer with a residual, in which a fault may strike."""

    def __init__(self, number: int, net: "list[Net]") -> None:
        super().__init__()
        self.number, self.inside, self.norm = (
            number,
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
            nn.LayerNorm(WIDTH),
        )
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds to `x`."""
        (net,) = self.net
        out: torch.Tensor = x + self.inside(self.norm(x))
        net.strike("forward", self.number)
        if out.requires_grad:
            out.register_hook(lambda _: net.strike("backward", self.number))  # type: ignore[no-untyped-call]
        return out


class Net(nn.Module):
    """Blocks, a buffer that each pass changes, and one that none does; and a layer that none uses, if `spare`."""

    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, CLASSES) if spare else None
        self.blocks = nn.ModuleList(Block(number, [self]) for number in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5))
        self.seen: torch.Tensor
        self.scale: torch.Tensor
        self.fault, self.left, self.step, self.at = Fault(), [0], list[TrainStep](), [-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the scores of classes."""
        with torch.no_grad():
            torch.maximum(self.seen, x.max(), out=self.seen)
        x = x * self.scale
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found

    def strike(self, place: str, block: int) -> None:
        """Raises the fault if it is its turn."""
        fault, here = self.fault, (place, block)
        if not self.step or self.left[0] == 0 or self.at[0] != fault.step or here != (fault.place, fault.block):
            return
        if self.step[0].micro_batch == fault.micro_batch:
            self.left[0] -= 1
            raise torch.OutOfMemoryError(TEXT) if fault.is_memory else ValueError("a fault of the user")


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    """Returns the loss of a batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def made(ranks: Ranks, plan: dict[str, Any]) -> tuple[TrainStep, Net]:
    """Returns a step that splits, as `Fit.prepare` makes it without its check, and its model."""
    torch.manual_seed(0)
    model = Net(spare=plan.get("find_unused_parameters", False))
    rows = TensorDataset(torch.randn(64, WIDTH), torch.randint(CLASSES, (64,)))
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731  # as users write it
    workload = Workload(model, DataLoader(rows, 8), step_fn=cross_entropy, optimizer=sgd)
    device, source, votes = devices.choose("cpu"), source_of(workload.loader), Votes.of(ranks)
    loss, small = loss_of(workload, source, CPU), source.typical(source.small_size, 1)[0]
    draft = Draft.of(workload, loss, CPU)
    draft.ranks = ranks.in_rows(distributed.new_group) if plan["layout"] == "hybrid" else ranks
    step = prepare(Plan(values=plan), draft, members())
    check_step(step, votes)
    splitting = Splitting(device, moving=Moving((model.seen,)), votes=votes)
    splitting.learn(step, small)
    step.splitting = splitting
    model.train()
    return step, model


def batches(ranks: Ranks, fault: Fault, parts: int) -> Iterator[StepBatch]:
    """Yields the same batches in each training, others on each rank."""
    chance = torch.Generator().manual_seed(ranks.number)
    size = fault.samples[ranks.number]
    for _ in range(STEPS):
        found = [torch.randn(size, WIDTH, generator=chance) for _ in range(parts)]
        labels = [torch.randint(CLASSES, (size,), generator=chance) for _ in range(parts)]
        yield StepBatch.of([list(pair) for pair in zip(found, labels, strict=True)])


def trained(ranks: Ranks, plan: dict[str, Any], parts: int, fault: Fault, *, strikes: bool) -> dict[str, Any]:
    """Trains a few steps. Returns the trained state, what was split, the errors by step, and the bytes left over."""
    gc.collect()
    bytes_before = storage_bytes(live_tensors(), CPU)
    step, model = made(ranks, plan)
    model.fault, model.left[0] = fault, fault.times if strikes and ranks.number in fault.ranks else 0
    model.step.append(step)
    losses, errors, longest_s = list[float](), dict[int, str](), 0.0
    for number, batch in enumerate(batches(ranks, fault, parts)):
        model.at[0], began = number, monotonic()
        try:
            if strikes or number != fault.step or not fault.ends:
                losses.append(float(step(batch)))
            elif step.draft.exchange is not None:  # of a step that ends, nothing else is left
                step.draft.exchange.begin()
        except Exception as error:  # noqa: BLE001  # it is judged
            errors[number] = f"{type(error).__name__}: {error}"
        longest_s = max(longest_s, monotonic() - began)
    assert step.optimizer is not None
    state = [value for each in step.optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    state = [each.to_local() if isinstance(each, DTensor) else each for each in state]
    splits = asdict(step.splits)
    gc.collect()
    bytes_left = storage_bytes(live_tensors(), CPU) - bytes_before
    step.close()
    model.step.clear()
    everything = [*model.parameters(), *model.buffers(), *state]
    flat = torch.cat([each.detach().flatten().double() for each in everything])
    return {"flat": flat, "losses": losses, "errors": errors, "splits": splits, "left": bytes_left, "s": longest_s}


def compared(ranks: Ranks, cases: list[tuple[str, int, Fault]]) -> list[dict[str, Any]]:
    """Trains each case with and without its fault. Returns what differs, and what was said."""
    found, known = [], dict[Any, dict[str, Any]]()
    for name, parts, fault in cases:
        plan, key = {**LAYOUTS, **IN_ROWS}[name], (name, parts, fault.samples, fault.step if fault.ends else None)
        if key not in known:
            known[key] = trained(ranks, plan, parts, fault, strikes=False)
        expected, with_fault = known[key], trained(ranks, plan, parts, fault, strikes=True)
        distance = (with_fault["flat"] - expected["flat"]).norm() / expected["flat"].norm()
        apart = max((abs(a - b) for a, b in zip(with_fault["losses"], expected["losses"], strict=True)), default=0.0)
        found.append(
            {
                "distance": float(distance),
                "losses": apart,
                "errors": {str(step): text for step, text in with_fault["errors"].items()},
                "splits": with_fault["splits"]["micro_batches"],
                "left": with_fault["left"] - expected["left"],
                "s": with_fault["s"],
            }
        )
    return found


def judged(fault: Fault, said: list[dict[str, Any]]) -> str:
    """Returns what is wrong with what the ranks said of one case; "" if nothing is."""
    for rank, found in enumerate(said):
        if found["distance"] > CLOSE or found["losses"] > CLOSE:
            return f"rank {rank} has trained something else: {found}"
        if found["left"] > 0:
            return f"rank {rank} holds {found['left']} bytes more"
        if found["s"] > MOST_S:
            return f"rank {rank} has taken {found['s']:.1f} s"
        error = found["errors"].get(str(fault.step), "")
        raised = "OutOfMemoryError" if fault.is_memory else "ValueError"
        expected = raised if rank in fault.ranks else "RanksLost: found an error on rank"
        if fault.ends and not error.startswith(expected):
            return f"rank {rank} has said {error!r}"
        if not fault.ends and (error or found["splits"] < (fault.times if fault.ranks else 0)):
            return f"rank {rank} has said {error!r} and split {found['splits']}"
    return ""


def drawn(seed: int, count: int) -> tuple[str, int, Fault]:
    """Returns the case of a seed: a layout, the number of micro batches, and a fault."""
    chance = random.Random(seed)
    layouts = LAYOUTS if count < 4 else {**LAYOUTS, **IN_ROWS}
    parts = chance.choice([1, 1, 2, 3])
    return chance.choice(sorted(layouts)), parts, Fault.of(chance, count, parts)


def main() -> None:
    """Runs the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [drawn(seed, given.ranks) for seed in range(given.first, given.first + given.seeds)]
    bad = 0
    for seed, case, said in zip(
        range(given.first, given.first + given.seeds),
        cases,
        zip(*launched(compared, cases, ranks=given.ranks), strict=True),
        strict=True,
    ):
        reason = judged(case[2], list(said))
        bad += bool(reason)
        print(f"{seed} {case}: {reason or 'ok'} ({max(each['s'] for each in said):.2f} s)")
    print(f"{given.seeds - bad} of {given.seeds} seeds as required")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
