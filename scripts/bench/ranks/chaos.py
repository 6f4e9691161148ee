"""Searches on several ranks with a fault on one of them: an out-of-memory, an error, a delay or a death, at random.

The fault strikes one rank in its n-th call of a forward pass, a backward pass, an update or the data set. That may be
while the bench opens, in a rehearsal, in a run on all ranks, in a check or in a proof. Required of each seed: every
rank ends within the deadline with the same plan or the same error, and has what it began with. Those that survive a
death say that ranks were lost, or have the best plan that was proven before.

    python -m scripts.bench.ranks.chaos --ranks 2 --seeds 300

Ranks run many seeds one after the other. A seed with a death has a launch of its own.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

KINDS = ("out of memory", "error", "delay", "long delay", "death")
PLACES = {"forward": 160, "backward": 80, "update": 80, "data": 500}
"""The places of a fault, and up to which call it strikes. A search without one makes about as many."""
DELAY_S, STEP_S, REPLY_S = 0.5, 3.0, 15.0
"""A short delay, and the limits of a step and of a reply, which are 30 s and 120 s in a search of a user."""
LONG_S = STEP_S + 3
SEARCH_S = 4.0
DEADLINE_S = 60.0
"""Seconds within which each rank ends a search, whatever happens on another."""
SAMPLES, WIDTH, CLASSES = 256, 16, 4


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens on which rank, in which call of what."""

    rank: int
    kind: str
    place: str
    call: int

    @classmethod
    def of(cls, seed: int, ranks: int) -> "Fault":
        """Returns the fault of a seed. Every fifth one is a death."""
        drawn = random.Random(seed)
        place = drawn.choice(sorted(PLACES))
        kind = KINDS[-1] if seed % len(KINDS) == 0 else drawn.choice(KINDS[:-1])
        return cls(drawn.randrange(ranks), kind, place, drawn.randrange(PLACES[place]))


class Striker:
    """Counts the calls of a place on this rank, and strikes once."""

    def __init__(self, fault: Fault | None, rank: int) -> None:
        self.fault, self.armed, self.calls = fault, fault is not None and fault.rank == rank, Counter[str]()
        self.struck = False

    def at(self, place: str) -> None:
        """Counts a call, and does what the fault says if it is its turn."""
        self.calls[place] += 1
        if self.fault is None or not self.armed or self.struck:
            return
        if (place, self.calls[place]) != (self.fault.place, self.fault.call + 1):
            return
        self.struck = True
        if self.fault.kind == "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (injected)")
        if self.fault.kind == "error":
            raise RuntimeError("a defect that only this rank has (injected)")
        if self.fault.kind == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(DELAY_S if self.fault.kind == "delay" else LONG_S)


PLACE = "autofit_chaos"
"""Attribute of the module `sys` that holds the striker. A search restores what the model reaches, and its counts must
stay."""


def strike(place: str) -> None:
    """Strikes if it is the turn of a place."""
    striker: Striker | None = getattr(sys, PLACE, None)
    if striker is not None:
        striker.at(place)


class Backward(torch.autograd.Function):
    """Passes its input on, and strikes in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Returns a view of the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Returns the gradient as it is."""
        strike("backward")
        return gradient


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns values of the input's shape."""
        out: Tensor = x + self.down(self.up(x).relu())
        return out


class Net(nn.Module):
    """Blocks, so that a layout has something to divide."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block(), Block()), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, [N, CLASSES]."""
        strike("forward")
        out: Tensor = self.head(Backward.apply(self.blocks(x)))  # type: ignore[no-untyped-call]
        return out


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random samples."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        strike("data")
        drawn = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=drawn), torch.randint(CLASSES, (), generator=drawn)


class Sgd(torch.optim.SGD):
    """Strikes in the update."""

    def step(self, closure: Any = None) -> Any:
        """Updates the weights."""
        strike("update")
        return super().step(closure)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns a digest of the weights, their classes, the optimizer's state and torch's random state."""
    found = hashlib.sha256()
    states = [state for each in optimizer.state.values() for state in each.values()]
    for tensor in (*model.state_dict().values(), *states, torch.get_rng_state()):
        found.update(tensor.numpy().tobytes() if isinstance(tensor, Tensor) else repr(tensor).encode())
    kinds = [type(each).__name__ for each in (*model.modules(), *model.parameters(), optimizer)]
    found.update(repr((kinds, optimizer.state_dict()["param_groups"])).encode())
    return found.hexdigest()


def searched(fault: Fault | None, rank: int) -> dict[str, Any]:
    """Searches once on this rank. Returns what came of it."""
    import autofit  # noqa: PLC0415  # the parent process has no ranks
    from autofit.core.errors import AutofitError  # noqa: PLC0415

    torch.manual_seed(0)
    model = Net()
    loader = DataLoader(Samples(), batch_size=8)
    optimizer = Sgd(model.parameters(), lr=0.1, momentum=0.9)
    before, threads = digest(model, optimizer), {each.name for each in threading.enumerate()}
    striker = Striker(fault, rank)
    setattr(sys, PLACE, striker)
    began = time.monotonic()
    try:
        fit = autofit.tune(
            model,
            loader,
            loss_fn=nn.functional.cross_entropy,
            optimizer=optimizer,
            global_batch_size=32,
            strategies=("layout", "batching", "checkpointing"),
            memory_budget="1GiB",
            time_budget=SEARCH_S,
            study=":memory:",
            progress=False,
        )
        result = f"plan {fit.plan}"
    except AutofitError as raised:
        result = f"error {type(raised).__name__}: {raised}"
    took_s = time.monotonic() - began
    setattr(sys, PLACE, None)
    gc.collect()
    return {
        "result": result,
        "same": digest(model, optimizer) == before,
        "took_s": round(took_s, 2),
        "struck": striker.struck,
        "calls": dict(striker.calls),
        "left": sorted({each.name for each in threading.enumerate()} - threads),
        "files": len(os.listdir("/proc/self/fd")),
        "group": distributed.is_initialized(),
    }


def rank_main(seeds: Iterable[int]) -> None:
    """Runs seeds on this rank, and prints what came of each."""
    from autofit.probing.ranks import bench, launch  # noqa: PLC0415

    bench.LEAST_S, bench.REPLY_S = STEP_S, REPLY_S
    launch.ARRIVAL_S = vars(bench)["ARRIVAL_S"] = DEADLINE_S / 2
    launch.SILENCE_S = DEADLINE_S / 6
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for seed in seeds:
        fault = Fault.of(seed, ranks) if seed >= 0 else None
        print(json.dumps({"seed": seed, "rank": rank, **searched(fault, rank)}), flush=True)


class Ranks:
    """Processes of one launch, each of which runs the same seeds."""

    def __init__(self, count: int, seeds: list[int]) -> None:
        with socket.socket() as found:
            found.bind(("localhost", 0))
            port = found.getsockname()[1]
        words = [sys.executable, "-m", "scripts.bench.ranks.chaos", "--of", *map(str, seeds)]
        known = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count), "MASTER_ADDR": "localhost"}
        self.processes = [
            subprocess.Popen(
                words,
                env={**known, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        self.heard = [list[dict[str, Any]]() for _ in range(count)]
        self.errors = ["" for _ in range(count)]
        ways = [(rank, way) for rank in range(count) for way in (0, 1)]
        self.threads = [threading.Thread(target=self._read, args=each) for each in ways]
        for each in self.threads:
            each.start()

    def _read(self, rank: int, way: int) -> None:
        process = self.processes[rank]
        if way == 0:
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError):
                    self.heard[rank].append(json.loads(line))
        else:
            assert process.stderr is not None, "it is a pipe"
            for line in process.stderr:
                self.errors[rank] = (self.errors[rank] + line)[-4000:]

    def ended(self, deadline_s: float) -> bool:
        """Waits until all have ended. Kills those that have not after some seconds without a result of any."""
        known, since, in_time = 0, time.monotonic(), True
        while in_time and any(each.poll() is None for each in self.processes):
            time.sleep(0.05)
            if (now := sum(map(len, self.heard))) > known:
                known, since = now, time.monotonic()
            in_time = time.monotonic() - since <= deadline_s
        for each in self.processes:
            each.kill()  # those that have ended do not notice
        for thread in self.threads:
            thread.join()
        for each in self.processes:
            with each:
                pass  # closes its pipes
        return in_time


def judged(seed: int, fault: Fault | None, said: list[dict[str, Any] | None]) -> str:
    """Returns what is wrong with what the ranks say of a seed; "" if all is right."""
    dead = fault is not None and fault.kind == "death" and said[fault.rank] is None
    alive = [each for rank, each in enumerate(said) if not (dead and fault is not None and rank == fault.rank)]
    if None in alive:
        return "a rank said nothing"
    found = [each for each in alive if each is not None]
    if not all(each["same"] for each in found):
        return "a model or an optimizer is not what it was"
    if any(each["left"] or each["group"] for each in found):
        return f"something is left: {[(each['left'], each['group']) for each in found]}"
    if any(each["took_s"] > DEADLINE_S for each in found):
        return "it took longer than the deadline"
    results = {"error RanksLost" if each["result"].startswith("error RanksLost") else each["result"] for each in found}
    if dead and not all(each.startswith(("plan", "error RanksLost")) for each in results):
        return f"after a death: {sorted(results)}"
    return "" if len(results) == 1 else f"the ranks differ: {sorted(results)}"


def outcomes(seeds: list[int], ranks: int) -> Iterator[tuple[int, Fault | None, list[dict[str, Any] | None], str]]:
    """Yields each seed with its fault, what each rank says, and what the processes wrote if one said nothing."""
    faults = {seed: None if seed < 0 else Fault.of(seed, ranks) for seed in seeds}
    deaths = [seed for seed, fault in faults.items() if fault is not None and fault.kind == "death"]
    together = [seed for seed in seeds if seed not in deaths]
    for group in ([together] if together else []) + [[seed] for seed in deaths]:
        launched = Ranks(ranks, group)
        launched.ended(DEADLINE_S + 60)  # imports, and the first seed
        for seed in group:
            said = [next((each for each in heard if each["seed"] == seed), None) for heard in launched.heard]
            yield seed, faults[seed], said, "\n".join(launched.errors) if None in said else ""


def main(arguments: list[str] | None = None) -> int:
    """Runs seeds. Returns 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    parser.add_argument("--output", type=Path, help="where to write the results as JSON lines")
    parser.add_argument("--of", type=int, nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.of is not None:
        rank_main(given.of)
        return 0
    wrong, kinds, began, slowest = list[str](), Counter[str](), time.monotonic(), 0.0
    for seed, fault, said, text in outcomes([*range(given.first, given.first + given.seeds)], given.ranks):
        assert fault is not None, "each seed has one"
        objection = judged(seed, fault, said)
        found = [each for each in said if each is not None]
        slowest = max([slowest, *(each["took_s"] for each in found)])
        ending = found[0]["result"].partition(" ")[0] if found else "nothing"
        struck = any(each["struck"] for each in found) or None in said
        kinds[f"{fault.kind if struck else 'not reached'}: {ending}"] += 1
        if objection:
            wrong.append(f"seed {seed} {fault}: {objection}\n{text[-1500:]}")
            print(wrong[-1], flush=True)
        if given.output:
            with given.output.open("a") as file:
                file.write(json.dumps({"seed": seed, "fault": str(fault), "wrong": objection, "said": said}) + "\n")
    total = given.seeds - len(wrong)
    print(f"{total} of {given.seeds} seeds on {given.ranks} ranks as required, in {time.monotonic() - began:.0f} s")
    print(f"slowest search {slowest:.1f} s; {dict(sorted(kinds.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
