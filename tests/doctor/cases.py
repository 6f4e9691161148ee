"""Bad and good trainings for the tests of the doctor: each finding has a pair that differs in a line or two.

A case is made on a device, by default the CPU. A comment such as `# bad: hook` names the line that a finding should
point to; `line("hook")` returns it.
"""

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.devices.base import Device
from autofit.devices.cpu import Cpu, HostMeter
from autofit.doctor.diagnosis import Diagnosis, Finding
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.doctor.observer import Observer
from autofit.doctor.session import Scope, Session, collection_off
from autofit.doctor.watch import Watch

MIB = 2**20
SMALL_BYTES = 64 * MIB
"""A budget so small that a hundred bytes per step are no minor growth."""
MOST_STEPS = 12
WORDS, WIDTH = 2000, 64


@dataclass
class Case:
    """A training.

    Attributes:
        model: the model, with all parts.
        step: does one whole step.
    """

    model: nn.Module
    step: Callable[[], None]


Make = Callable[..., Case]


class Small(Cpu):
    """The CPU with a small budget, under which slow growth is no minor finding."""

    def budget(self, memory: Any, varies: bool) -> Budget:
        return Budget(memory_bytes=SMALL_BYTES)


def diagnosed(
    case: Case, device: Device | None = None, detectors: Sequence[Detector] | None = None, **more: Any
) -> Diagnosis:
    """Runs a case until the doctor has seen enough."""
    scope = Scope(detectors)
    session = Session("case", lambda: {"step": case.step}, [case.model], device or Small(), scope=scope, **more)
    try:
        for _ in range(MOST_STEPS):
            case.step()
            if (found := session.boundary()) is not None:
                return found
    finally:
        session.close()
    raise AssertionError(f"no diagnosis after {MOST_STEPS} steps")


def observed(case: Case, account: Account | None = None, device: str = "cpu") -> Observation:
    """Runs a case under the watch until the observation is complete."""
    watch = Watch(torch.device(device), [case.model])
    observer = Observer(watch, account or Account(allocator="host"), SMALL_BYTES, lambda: {"step": case.step})
    case.step()
    with collection_off(), watch.watching():
        for _ in range(MOST_STEPS):
            case.step()
            if (found := observer.boundary()) is not None:
                return found
    raise AssertionError(f"no observation after {MOST_STEPS} steps")


ON_ACCELERATORS = frozenset(
    ("sync", "fragmentation", "fp32-products", "autocast-cache", "launch-bound", "cudnn-workspace")
)
"""Kinds of findings that are not looked for on a host."""
OF_SOME = frozenset(("worker-growth", "recompiles"))
"""Kinds of findings that are looked for only with a loader that has workers, and a model that is compiled."""
RUN_AGAIN = frozenset(
    (
        *("heavy-module", "attention-scores", "logits", "optimizer-peak", "padding", "loader", "launch-bound"),
        *("cudnn-workspace", "wide-mask", *OF_SOME),
    )
)
"""Kinds of findings that run further steps, and are not looked for in loops and scripts."""


def unchecked(diagnosis: Diagnosis) -> list[str]:
    """Returns what was not looked for, beside what no loop on a host is looked at for."""
    return [each.id for each in diagnosis.unchecked if each.id not in ON_ACCELERATORS | RUN_AGAIN]


def of(diagnosis: Diagnosis, kind: str) -> list[Finding]:
    """Returns the findings of a kind."""
    return [finding for finding in diagnosis.findings if finding.id == kind]


def shown(diagnosis: Diagnosis) -> list[str]:
    """Returns the findings that are not minor, as texts."""
    return [f"{finding.id}: {finding.what}" for finding in diagnosis.findings if not finding.minor]


def line(name: str) -> str:
    """Returns the place of a line of this file that has the comment `# bad: NAME`."""
    for number, text in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1):
        if text.endswith(f"  # bad: {name}"):
            return f"cases.py:{number}"
    raise AssertionError(f"no line is called {name}")


def peak_bytes(make: Callable[[], Case], steps: int = 3) -> int:
    """Returns the peak of a step after some others, from torch's allocation record."""
    gc.collect()
    meter = HostMeter()
    with collection_off():
        meter.start()
        try:
            case = make()
            for _ in range(steps):
                case.step()
                meter.drain()
            meter.peak_bytes = 0
            case.step()
        finally:
            meter.stop()
    del case
    gc.collect()
    return meter.peak_bytes


def mlp(device: str = "cpu", width: int = 64) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Returns a small model, a batch and its classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return model.to(device), torch.randn(64, 32).to(device), torch.randint(10, (64,)).to(device)


class Language(nn.Module):
    """A model whose logits are its largest tensor."""

    def __init__(self, width: int = WIDTH, words: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        logits: torch.Tensor = self.head(x + self.body(x))  # bad: logits
        return logits


def language(device: str = "cpu") -> tuple[Language, torch.Tensor, torch.optim.Optimizer]:
    """Returns a language model, its batch and an optimizer."""
    torch.manual_seed(0)
    model = Language().to(device)
    return model, torch.randint(WORDS, (512,)).to(device), torch.optim.AdamW(model.parameters(), fused=True)


# Memory that each step leaves behind.


def keeping(what: str, device: str = "cpu") -> Case:
    """A loop that keeps something of each step."""
    model, x, y = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[Any] = []
    total: dict[str, Any] = {"loss": 0.0}
    ring, last = deque[torch.Tensor](maxlen=3), dict[str, torch.Tensor]()
    tables: dict[int, torch.Tensor] = {}
    average = [parameter.detach().clone() for parameter in model.parameters()]

    def step() -> None:
        out = model(x)
        loss = F.cross_entropy(out, y)
        if what == "sum before backward":
            total["loss"] = total["loss"] + loss
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        if what == "losses":
            kept.append(loss)
        elif what == "outputs":
            kept.append(out)
        elif what == "detached outputs":
            kept.append(out.detach())
        elif what == "view of an output":
            kept.append(out.detach()[0])
        elif what == "sum after backward":
            total["loss"] = total["loss"] + loss
        elif what == "evaluation with gradients":
            kept.append(F.cross_entropy(model(x), y))  # bad: evaluation
        elif what == "cycle":
            box: dict[str, Any] = {"out": out.detach().clone()}  # bad: cycle
            box["me"] = box
        elif what == "dict":
            tables[len(tables)] = out.detach()
        elif what == "several in a dict":
            kept.append({"loss": loss, "out": out, "y": y.clone()})
        elif what == "numbers":
            kept.append(loss.item())
        elif what == "sum of detached":
            total["loss"] = total["loss"] + loss.detach()
        elif what == "ring":
            ring.append(out.detach())
        elif what == "last output":
            last["out"] = out
        elif what == "evaluation without gradients":
            with torch.no_grad():
                kept.append(F.cross_entropy(model(x), y).item())
        elif what == "table":
            if 64 not in tables:
                tables[64] = torch.ones(64, device=device).cumsum(0)
            out.detach().add(tables[64][:10])
        elif what == "cleared list":
            kept.append(out.detach())
            if len(kept) == 2:
                kept.clear()
        elif what == "average of weights":
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)

    return Case(model, step)


def appended(how: str, device: str = "cpu") -> Case:
    """A tensor that each step makes longer by its outputs, never, or up to a limit."""
    model, x, y = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = {"out": torch.empty(0, 10, device=device)}

    def step() -> None:
        out = model(x)
        F.cross_entropy(out, y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()
        longer = torch.cat([kept["out"], out.detach()])  # bad: appended
        kept["out"] = {"all": longer, "last": longer[-64:].clone(), "within the step": longer[:0].clone()}[how]

    return Case(model, step)


def averaged(good: bool, device: str = "cpu") -> Case:
    """A moving average of the weights that carries its graph, in a training whose own graph is larger."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))).to(device)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(8, 16).to(device)
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    last: dict[str, torch.Tensor] = {}

    def step() -> None:
        last["loss"] = loss = model(x).square().mean()  # its graph is the largest
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.set_grad_enabled(not good):
            shadow.update({name: 0.9 * shadow[name] + 0.1 * each for name, each in model.named_parameters()})

    return Case(model, step)


def hooked(keeps: bool, device: str = "cpu") -> Case:
    """A forward hook that keeps what it sees, or only its mean."""
    model, x, y = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []

    def look(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        seen.append(out if keeps else out.detach().mean().item())

    model[1].register_forward_hook(look)

    def step() -> None:
        loss = F.cross_entropy(model(x), y)  # bad: hook
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()

    return Case(model, step)


class Recurrent(nn.Module):
    """A recurrent model that goes on from the state of its last call."""

    state: torch.Tensor | None

    def __init__(self, detaches: bool, registers: bool = False) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 10)
        if registers:
            self.register_buffer("state", None)
        else:
            self.state = None
        self.detaches = detaches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.rnn(x, self.state)  # bad: state
        self.state = state.detach() if self.detaches else state
        found: torch.Tensor = self.head(out[:, -1])
        return found


def recurrent(detaches: bool, device: str = "cpu", *, registers: bool = False) -> Case:
    """A hidden state that is carried on. No optimizer: torch would find weights that were changed in place."""
    torch.manual_seed(0)
    model = Recurrent(detaches, registers).to(device)
    x, y = torch.randn(8, 6, 16).to(device), torch.randint(10, (8,)).to(device)

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward(retain_graph=not detaches)  # type: ignore[no-untyped-call]  # torch has no types here

    return Case(model, step)


class Leak(NamedTuple):
    """A training whose memory grows.

    Attributes:
        make: makes it.
        kinds: the findings that say so, of which at least one is expected.
        holder: a part of the holder's name; "" for none.
        text: a part of what is found.
    """

    make: Make
    kinds: Sequence[str]
    holder: str
    text: str = ""


LEAKS: dict[str, Leak] = {
    "losses": Leak(partial(keeping, "losses"), ["grows"], "`kept[", "main memory grows by at least"),
    "outputs": Leak(partial(keeping, "outputs"), ["grows"], "`kept["),
    "detached outputs": Leak(partial(keeping, "detached outputs"), ["grows"], "`kept["),
    "view of an output": Leak(partial(keeping, "view of an output"), ["grows"], "`kept["),
    "sum after backward": Leak(partial(keeping, "sum after backward"), ["graph-grows"], "`total['loss']`"),
    "sum before backward": Leak(partial(keeping, "sum before backward"), ["graph-grows"], "`total['loss']`"),
    "evaluation with gradients": Leak(
        partial(keeping, "evaluation with gradients"),
        ["graph-kept"],
        "the graph of `kept[",
        "no backward pass has used",
    ),
    "cycle": Leak(partial(keeping, "cycle"), ["grows"], "", "held by objects that refer to each other"),
    "hook": Leak(partial(hooked, True), ["grows"], "`seen["),
    "hidden state": Leak(partial(recurrent, False), ["graph-kept"], "state`"),
    "hidden state in a buffer": Leak(partial(recurrent, False, registers=True), ["graph-kept"], "state`"),
    "appended": Leak(partial(appended, "all"), ["grows"], "`kept['out']`", "makes anew from the one before"),
    "average with a graph": Leak(partial(averaged, False), ["graph-grows"], "`shadow['0.weight']`", "of 40 tensors"),
}
LOOK_ALIKES: dict[str, Make] = {
    **{
        what: partial(keeping, what)
        for what in (
            "numbers", "sum of detached", "ring", "last output", "evaluation without gradients", "table",
            "cleared list", "average of weights",
        )
    },
    "hook": partial(hooked, False),
    "hidden state": partial(recurrent, True),
    "hidden state in a buffer": partial(recurrent, True, registers=True),
    "appended and cut": partial(appended, "last"),
    "appended within a step": partial(appended, "within the step"),
    "average without a graph": partial(averaged, True),
}  # fmt: skip


# Memory at the peak of a step.


def held_outputs(good: bool, device: str = "cpu") -> Case:
    """A local variable keeps the logits through the backward pass."""
    model, ids, optimizer = language(device)

    def bad_step() -> None:
        outputs = model(ids)
        loss = F.cross_entropy(outputs, ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    def good_step() -> None:
        loss = F.cross_entropy(model(ids), ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, good_step if good else bad_step)


def outputs_in_state(good: bool, device: str = "cpu") -> Case:
    """An object keeps the logits into the next step."""
    model, ids, optimizer = language(device)
    state: dict[str, torch.Tensor] = {}

    def step() -> None:
        if good:
            loss = F.cross_entropy(model(ids), ids)
        else:
            state["out"] = model(ids)
            loss = F.cross_entropy(state["out"], ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def halves(good: bool, device: str = "cpu") -> Case:
    """Two variables keep gradients that one line makes, through the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    x, y = torch.randn(1024, 64).to(device), torch.randint(10, (1024,)).to(device)
    optimizer, (_, _, weight, *_) = torch.optim.SGD(model.parameters(), lr=0.1), model.parameters()

    def step() -> None:
        out = model(x)
        first, second = F.cross_entropy(out, y), out.square().mean()
        of_first = torch.autograd.grad(first, [weight], retain_graph=True)[0]
        of_second = torch.autograd.grad(second, [weight], retain_graph=True)[0]
        ratio = (of_first.norm() / of_second.norm()).item()
        if good:
            del of_first, of_second
        optimizer.zero_grad()
        first.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch has no types here
        (ratio * second).backward()
        optimizer.step()

    return Case(model, step)


def retained(good: bool, device: str = "cpu") -> Case:
    """A graph that is kept for a second pass, and by a variable into the next step."""
    model, ids, optimizer = language(device)
    state: dict[str, torch.Tensor] = {}

    def step() -> None:
        loss = F.cross_entropy(model(ids), ids)
        state["loss"] = loss.detach() if good else loss
        loss.backward(retain_graph=not good)  # type: ignore[no-untyped-call]  # bad: retain
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def zeroed(good: bool, device: str = "cpu") -> Case:
    """Gradients that are set to zero live through the forward pass."""
    model, ids, optimizer = language(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=good)  # bad: zero_grad
        F.cross_entropy(model(ids), ids).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        if good:
            optimizer.zero_grad()

    return Case(model, step)


def first_order(good: bool, device: str = "cpu", *, uses: bool = False) -> Case:
    """Gradients whose own graph nothing uses, or, with `uses`, the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)).to(device)
    x, optimizer = torch.randn(1024, 64).to(device), torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        inputs = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=not good)  # bad: create_graph
        aim = slope.square().mean() if uses else slope.detach().square().mean()
        optimizer.zero_grad()
        (model(x).square().mean() + aim).backward()
        optimizer.step()

    return Case(model, step)


def replaced(good: bool, device: str = "cpu") -> Case:
    """A head that was replaced after the optimizer was made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
    x, y = torch.randn(64, 64).to(device), torch.randint(16, (64,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(1024, 512).to(device)
    if good:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()

    return Case(model, step)


def thawed(good: bool, device: str = "cpu") -> Case:
    """A body is frozen after some steps, and the optimizer keeps its state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
    x, y = torch.randn(64, 512).to(device), torch.randint(16, (64,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()

    def freeze() -> None:
        model[0].requires_grad_(False)
        optimizer.zero_grad()

    if good:
        freeze()
    else:
        step()
        freeze()
    return Case(model, step)


def taught(good: bool, device: str = "cpu") -> Case:
    """A teacher whose graph no backward pass uses."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"student": Language(), "teacher": Language()}).to(device)
    ids = torch.randint(WORDS, (512,)).to(device)
    optimizer = torch.optim.AdamW(both["student"].parameters(), fused=True)

    def step() -> None:
        if good:
            with torch.no_grad():
                soft = both["teacher"](ids).softmax(-1)
        else:
            soft = both["teacher"](ids).softmax(-1)  # bad: teacher
        loss = F.cross_entropy(both["student"](ids), soft.detach())
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    return Case(both, step)


def half_optimized(good: bool, device: str = "cpu") -> Case:
    """Fine-tuning of a head, whose body gets gradients that no optimizer has."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    model = nn.Sequential(body, nn.Linear(512, 10)).to(device)
    x, y = torch.randn(256, 512).to(device), torch.randint(10, (256,)).to(device)
    body.requires_grad_(not good)
    optimizer = torch.optim.AdamW(model[1].parameters(), fused=True)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        model.zero_grad()

    return Case(model, step)


def unused_head(good: bool, device: str = "cpu") -> Case:
    """A head that no loss reaches."""
    model, x, y = mlp(device)
    both = nn.ModuleDict({"body": model, "spare": nn.Linear(512, 512)}).to(device)
    if good:
        del both["spare"]
    optimizer = torch.optim.AdamW(both.parameters(), fused=True)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    return Case(both, step)


def adversarial(
    good: bool,
    device: str = "cpu",
    *,
    samples: str = "",
    retains: bool | None = None,
    frozen: bool | None = None,
    shared: bool = False,
) -> Case:
    """A GAN. The bad one trains the judge on samples that are not detached, with `retain_graph`, for nothing.

    `samples` says what the judge is trained on: "attached", "detached", or made without a "graph". They and the other
    two are by default those of the good or the bad one. With `shared`, the generator is trained on the same samples.
    """
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784)).to(device)
    judge = nn.Sequential(nn.Linear(784, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).to(device)
    first = torch.optim.Adam(generator.parameters(), fused=True)
    second = torch.optim.Adam(judge.parameters(), fused=True)
    real, noise = torch.randn(256, 784).to(device), torch.randn(256, 64).to(device)
    ones, zeros = torch.ones(256, 1, device=device), torch.zeros(256, 1, device=device)
    loss_of = F.binary_cross_entropy_with_logits
    samples = samples or ("detached" if good else "attached")
    retained, freezes = not good if retains is None else retains, good if frozen is None else frozen

    def step() -> None:
        with torch.set_grad_enabled(samples != "graph"):
            fake = generator(noise)
        second.zero_grad()
        loss = loss_of(judge(real), ones) + loss_of(judge(fake.detach() if samples == "detached" else fake), zeros)
        loss.backward(retain_graph=retained)  # type: ignore[no-untyped-call]  # bad: judge
        second.step()
        del loss
        if not shared:
            del fake
        first.zero_grad()
        judge.requires_grad_(not freezes)
        loss_of(judge(fake if shared else generator(noise)), ones).backward()  # type: ignore[no-untyped-call]  # bad: generator
        first.step()
        judge.requires_grad_(True)

    return Case(nn.ModuleDict({"generator": generator, "judge": judge}), step)


def retained_adversarial(good: bool, device: str = "cpu") -> Case:
    """A GAN whose graph is kept for a second pass, and not."""
    return adversarial(False, device, retains=not good)


def attached_adversarial(good: bool, device: str = "cpu") -> Case:
    """A GAN whose judge is trained on samples with a graph that nothing else uses, and without a graph."""
    return adversarial(False, device, samples="graph" if good else "attached", retains=False, frozen=True)


def shared_adversarial(good: bool, device: str = "cpu") -> Case:
    """A GAN that trains both models on the same samples, which are detached for the judge or not."""
    return adversarial(good, device, frozen=True, shared=True)


class Pair(NamedTuple):
    """A bad and a good training.

    Attributes:
        make: makes the good one for True, the bad one for False.
        kind: the finding that the bad one has.
        line: name of the line that it points to; "" if it has none.
        holder: a part of the holder's name; "" for none.
        exact: whether its size is that of the difference. Others have none, or a second fault.
    """

    make: Callable[..., Case]
    kind: str
    line: str = ""
    holder: str = ""
    exact: bool = False


PAIRS: dict[str, Pair] = {
    "held outputs": Pair(held_outputs, "dead-at-peak", "logits", "`outputs` in bad_step", True),
    "outputs in state": Pair(outputs_in_state, "dead-at-peak", "logits", "`state['out']`", True),
    "retained": Pair(retained, "retain-graph", "retain", "", True),
    "zeroed": Pair(zeroed, "zeroed-gradients", "zero_grad", "", True),
    "thawed": Pair(thawed, "frozen-state", "", "", True),
    "taught": Pair(taught, "saved-unused", "teacher", "", True),
    "half optimized": Pair(half_optimized, "gradient-without-optimizer", exact=True),
    "first order": Pair(first_order, "saved-unused", "create_graph", "", True),
    "replaced": Pair(replaced, "gradient-without-optimizer"),
    "unused head": Pair(unused_head, "no-gradient"),
    "adversarial": Pair(adversarial, "gradient-dropped", "judge"),
    "retained adversarial": Pair(retained_adversarial, "retain-graph", "judge", "", True),
    "attached adversarial": Pair(attached_adversarial, "gradient-dropped", "judge", "", True),
    "shared adversarial": Pair(shared_adversarial, "gradient-dropped", "judge"),
}


@cache
def diagnosis_of(name: str, good: bool) -> Diagnosis:
    """Returns the diagnosis of one of `PAIRS`."""
    return diagnosed(PAIRS[name].make(good))
