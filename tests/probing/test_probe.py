"""A probe runs a plan as it stands, and every failure of one plan is an outcome that leaves nothing behind."""

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from autofit.core.objective import Objective
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.workloads.representative_batches import expected_largest
from autofit.workloads.workload import Workload
from tests.digests import digest_of
from tests.fakes import FakeTime, notes, unguarded
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, Scaled, evaluate

OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
REFUSED = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "8589934592 bytes. Error code 12 (Cannot allocate memory)"
)


def digest(workload: Workload) -> str:
    assert isinstance(workload.optimizer, torch.optim.Optimizer)
    return digest_of(workload.model, workload.optimizer, workload.loader)


class Fuse:
    """Burns through at the n-th call, with the given exception."""

    def __init__(self, error: BaseException, at: int = 1) -> None:
        self.error, self.left, self.live = error, at, False
        self.seen: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, *tensors: torch.Tensor) -> None:
        if not self.live:
            return
        self.seen += map(weakref.ref, tensors)
        self.left -= 1
        if self.left == 0:
            raise type(self.error)(*self.error.args)


class BurningForward(nn.Module):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = (fuse,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fuse[0](x)
        return x


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fuse: Fuse) -> torch.Tensor:
        ctx.fuse = fuse
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.fuse(gradient)
        return gradient, None


class BurningBackward(BurningForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = Backward.apply(x, self.fuse[0])  # type: ignore[no-untyped-call]  # torch has no types here
        return output


class BurningAdam(torch.optim.Adam):
    """Fails after it has made its state, as a real out-of-memory in the middle of a step does."""

    fuse: Fuse

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.fuse(*(v for state in self.state.values() for v in state.values() if isinstance(v, torch.Tensor)))
        return result


def burning(place: str, fuse: Fuse) -> Workload:
    """A workload that fails at `place`; activations before it are watched."""
    kinds = {"forward": BurningForward, "backward": BurningBackward}
    torch.manual_seed(0)
    middle = [kinds[place](fuse)] if place in kinds else []
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *middle, nn.Linear(16, 4))
    model[1].register_forward_hook(lambda module, inputs, output: fuse.seen.append(weakref.ref(output)))
    optimizer = BurningAdam(model.parameters())
    optimizer.fuse = fuse if place == "optimizer" else Fuse(KeyError())
    return Workload(model, targets.vectors(), optimizer=optimizer)


FAULTS = [("forward", 1), ("forward", 2), ("backward", 1), ("backward", 2), ("optimizer", 1), ("optimizer", 2)]


@pytest.mark.parametrize("error", [OOM, REFUSED], ids=["class", "text"])
@pytest.mark.parametrize(("place", "at"), FAULTS)
@pytest.mark.fault("F01", "F02", "F03", "F04")
def test_an_out_of_memory_is_an_outcome_that_leaves_nothing_behind(place: str, at: int, error: RuntimeError) -> None:
    fuse = unguarded(Fuse(error, at))
    workload = burning(place, fuse)
    before = digest(workload)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        fuse.live = True
        fuse.seen.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY
        assert outcome.phase == place
        assert outcome.reason
        assert outcome.measurement is None
        assert len(fuse.seen) >= at
        assert [ref for ref in fuse.seen if ref() is not None] == []
        assert all(p.grad is None for p in workload.model.parameters())
        assert isinstance(workload.optimizer, torch.optim.Optimizer)
        assert len(workload.optimizer.state) == 0
        assert digest(workload) == before
        fuse.live = False
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    assert digest(workload) == before


@pytest.mark.fault("F02")
def test_no_tensor_is_left_after_failures_and_successes() -> None:
    fuse = unguarded(Fuse(OOM, 3))
    workload = burning("backward", fuse)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        plan = bench.briefing.space.baseline

        def count() -> int:
            return sum(isinstance(found, torch.Tensor) for found in gc.get_objects())

        assert bench.evaluate(plan, Purpose.PROBE).measured
        before = count()
        fuse.live = True
        assert bench.evaluate(plan, Purpose.PROBE).status is Status.OUT_OF_MEMORY
        assert count() == before
        fuse.live = False
        assert bench.evaluate(plan, Purpose.BLOCK).measured
        assert count() == before


@pytest.mark.fault("F13")
def test_a_kept_exception_does_not_keep_the_tensors() -> None:
    """A user's code may hold on to the exception; what it refers to has been scrubbed."""
    kept = notes()
    seen = notes()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        hidden = model(batch[0])
        seen.append(weakref.ref(hidden))
        try:
            if not armed:
                loss: torch.Tensor = hidden.mean()
                return loss
            raise OOM
        except RuntimeError as error:
            kept.append(error)
            raise

    armed = notes()
    workload = Workload(targets.mlp(), targets.vectors(), step_fn=loss)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        armed.append(True)
        seen.clear()
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).status is Status.OUT_OF_MEMORY
        assert len(kept) == len(seen) == 1
        assert seen[0]() is None


def users_step(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step function that fails when the model says so."""
    if model.mood == "wrong":
        raise ValueError("found 3 labels")
    if model.mood == "exit":
        raise SystemExit(3)
    if model.mood == "interrupt":
        raise KeyboardInterrupt
    output: torch.Tensor = model(batch[0])
    if model.mood == "nan":
        return output.mean() * float("nan")
    return output if model.mood == "vector" else output.mean()


def set_mood(model: Any, mood: str) -> None:
    model.mood = mood


def moody() -> Workload:
    model = targets.mlp()
    set_mood(model, "good")
    return Workload(model, targets.vectors(), step_fn=users_step, optimizer=torch.optim.Adam(model.parameters()))


@pytest.mark.parametrize(
    ("mood", "status", "reason"),
    [
        ("nan", Status.NUMERIC, "the loss is nan, from step 1 on, on the worst batch"),
        ("wrong", Status.USER_ERROR, "found 3 labels"),
        ("exit", Status.USER_ERROR, "SystemExit"),
        ("vector", Status.USER_ERROR, "step_fn returned a tensor of shape [8, 4]"),
    ],
)
def test_what_the_users_step_does_wrong_is_told(mood: str, status: Status, reason: str) -> None:
    workload = moody()
    with LocalBench(workload, CPU(), PLENTY) as bench:
        before = digest(workload)
        set_mood(workload.model, mood)
        try:
            outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        finally:
            set_mood(workload.model, "good")
        assert outcome.status is status
        assert reason in outcome.reason
        assert digest(workload) == before
        if mood in ("wrong", "exit"):
            assert outcome.phase == "forward"
            assert "in users_step" in outcome.traceback_text
            assert "/autofit/" not in outcome.traceback_text


def test_a_step_function_that_calls_backward_itself_is_told_so() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0]).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        return loss

    outcome = evaluate(Workload(targets.mlp(), targets.vectors(), step_fn=step))
    assert outcome.status is Status.USER_ERROR
    assert "if step_fn calls backward() or optimizer.step() itself, remove these calls" in outcome.reason
    assert ".detach() it" in outcome.reason


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.fault("F31")
def test_a_stop_iteration_of_the_users_code_is_its_error_and_not_a_step(purpose: Purpose) -> None:
    """A bare `next()` on an exhausted iterator."""
    model, live = targets.mlp(), set[str]()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1]) if not live else next(iter(()))

    with LocalBench(Workload(model, targets.vectors(), step_fn=step), CPU(), PLENTY) as bench:
        live.add("probing")
        outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
    assert outcome.status is Status.USER_ERROR
    assert "StopIteration" in outcome.reason
    assert "test_probe.py" in outcome.reason


def test_an_interrupt_passes_through_and_everything_is_back() -> None:
    workload = moody()
    before = digest(workload)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        set_mood(workload.model, "interrupt")
        with pytest.raises(KeyboardInterrupt):
            bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert workload.model.mood == "good"  # the attributes of modules come back too
        assert digest(workload) == before


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.broken = False

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.broken:
            raise IndexError("row is damaged")
        return torch.full((8,), float(at)), torch.tensor(at % 4)


def test_an_error_of_the_data_set_is_a_data_error() -> None:
    rows = Rows()
    workload = Workload(targets.mlp(), DataLoader(rows, batch_size=8))
    with LocalBench(workload, CPU(), PLENTY) as bench:
        rows.broken = True
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        rows.broken = False
    assert outcome.status is Status.DATA_ERROR
    assert outcome.phase == "fetch"
    assert "row is damaged" in outcome.reason
    assert "__getitem__" in outcome.traceback_text


def test_a_plan_that_cannot_be_applied_here_is_rejected() -> None:
    outcome = evaluate(targets.make_mlp(), precision="fp4")
    assert outcome.status is Status.REJECTED
    assert outcome.phase == "prepare"
    assert "precision='fp4' cannot be applied here" in outcome.reason


def test_a_proof_has_phases_and_a_block_times_only(step_clock: FakeTime) -> None:
    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        step_clock.advance(2.0)
        return F.cross_entropy(model(batch[0]), batch[1])

    workload = Workload(targets.mlp(), targets.vectors(), step_fn=step_fn)
    proof = evaluate(workload, Purpose.PROOF).measurement
    block = evaluate(workload, Purpose.BLOCK).measurement
    assert proof is not None
    assert block is not None
    assert proof.step_times_s == (2.0,) * 3
    assert proof.phases_s == {"transfer": 0.0, "forward": 2.0, "backward": 0.0, "optimizer": 0.0}
    assert block.phases_s == {}
    assert len(block.step_times_s) == 4
    assert block.worst_steps == 0
    assert block.memory.judged_by == "not read in a race"
    assert proof.loss is not None
    assert proof.fetch_s is not None
    assert proof.tokens_per_step is None


def test_useful_tokens_are_counted_per_step() -> None:
    workload = Workload(
        targets.Transformer(), targets.sentences((3, 24)), step_fn=targets.sample_mean, global_batch_size=8
    )
    outcome = evaluate(workload, micro_batch_size=2, accumulation_steps=4)
    assert outcome.measurement is not None
    assert outcome.measurement.tokens_per_step == pytest.approx(8 * 13.5, rel=0.3)


def test_where_all_have_one_shape_a_hopeless_plan_is_no_faster_for_the_batch_it_ran_on(step_clock: FakeTime) -> None:
    rows = [{"input_ids": torch.ones(24, dtype=torch.long), "attention_mask": (torch.arange(24) < 1 + at % 24).long(),
             "labels": torch.ones(24, dtype=torch.long)} for at in range(96)]  # fmt: skip

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        step_clock.advance(1.0)
        return targets.token_mean(model, batch)

    workload = Workload(targets.Transformer(), DataLoader(rows, batch_size=8), step_fn=step_fn)  # type: ignore[arg-type]
    with LocalBench(workload, CPU(), PLENTY) as bench:
        own = bench.briefing.space.baseline
        quick, slow = (bench.evaluate(own.replace(micro_batch_size=size), Purpose.PROBE) for size in (8, 1))
    assert quick.measurement is not None
    assert slow.measurement is not None
    assert "not timed further" in slow.measurement.warnings[0]
    assert slow.measurement.tokens_per_s == pytest.approx((quick.measurement.tokens_per_s or 0) / 8)


def test_padding_is_not_rewarded(step_clock: FakeTime) -> None:
    """The large micro batch computes more elements a second, most of them padding: it is the slower one."""

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        rows, width = batch["input_ids"].shape
        step_clock.advance(rows * width / (1000 if rows == 1 else 1300))
        return targets.sample_mean(model, batch)

    workload = Workload(targets.Transformer(), targets.sentences((3, 24)), step_fn=step_fn, global_batch_size=16)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        own = bench.briefing.space.baseline
        small, large = (
            bench.evaluate(own.replace(micro_batch_size=16 // steps, accumulation_steps=steps), Purpose.PROBE)
            for steps in (16, 1)
        )
    assert small.measurement is not None
    assert large.measurement is not None
    tokens = Objective(unit="tokens")
    assert tokens.score(small.measurement) == pytest.approx(1000, rel=0.1)
    assert tokens.score(large.measurement) == pytest.approx(1300 * 13.5 / 24, rel=0.1)


def test_a_shape_that_is_new_in_each_step_counts_although_a_probe_repeats_its_batches(step_clock: FakeTime) -> None:
    """The first micro batch of a length takes 0.1 s longer, as with a library that generates code for each shape."""
    seen = set[int]()

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        length = batch["input_ids"].shape[1]
        step_clock.advance(0.05 if length in seen else 0.15)
        seen.add(length)
        return model.embed.weight.sum() * 0  # type: ignore[operator,union-attr]  # the time is all that counts

    for lengths, new_s in ((range(8, 2000, 3), 0.2), (range(8, 32), 0.0)):
        loader = targets.sentences(tuple(lengths), batch_size=1, samples=len(lengths))
        workload = Workload(targets.Transformer(), loader, step_fn=step_fn, global_batch_size=2)
        with LocalBench(workload, CPU(), PLENTY) as bench:
            plan = bench.briefing.space.baseline.replace(micro_batch_size=1, accumulation_steps=2)
            probe, block, proof = (bench.evaluate(plan, purpose).measurement for purpose in Purpose)
        assert probe is not None
        assert proof is not None
        assert block is not None
        assert [found.new_shape_s for found in (probe, proof, block)] == pytest.approx([new_s, new_s, 0.0])
        assert probe.step_time_s == pytest.approx(0.1 + new_s)
        said = ("preparing kernels for new shapes takes 200 ms of each step",)
        assert probe.warnings == (said if new_s else ())
        seen.clear()


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_size_is_faster_for_the_texts_it_happens_to_get(
    step_clock: FakeTime, unit: Literal["samples", "tokens"], seed: int
) -> None:
    """What a step takes by its elements is found at each size as one pass over the whole data set has it."""
    draw = random.Random(seed)
    texts = tuple(int(4 + 60 * draw.random() ** 2) for _ in range(512))

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        step_clock.advance(batch["input_ids"].numel() / 1000)
        return model.embed.weight.sum() * 0  # type: ignore[operator,union-attr]  # the time is all that counts

    loader = targets.sentences(texts, batch_size=4, samples=512)
    options = PLENTY.model_copy(update={"numerics": "any", "seed": seed})
    with LocalBench(Workload(targets.Transformer(), loader, step_fn=step_fn), CPU(), options) as bench:
        for size in (1, 2, 4, 8, 16):
            measurement = bench.evaluate(bench.briefing.space.baseline.replace(micro_batch_size=size), Purpose.PROBE)
            padded_s = expected_largest(texts, size) * size / 1000
            count = size if unit == "samples" else size * fmean(texts)
            assert measurement.measurement is not None
            found = Objective(unit=unit).score(measurement.measurement)
            assert found == pytest.approx(count / padded_s, rel=0.03)


def test_the_start_of_a_plan_is_what_its_first_steps_take_longer(step_clock: FakeTime) -> None:
    steps = notes()

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        steps.append(1)
        # The kernels are tuned in the first step, and once more for the first typical batch.
        step_clock.advance({1: 32.0, 3: 6.0}.get(len(steps), 2.0))
        return F.cross_entropy(model(batch[0]), batch[1])

    workload = Workload(targets.mlp(), targets.vectors(), step_fn=step_fn)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        for purpose, startup_s in ((Purpose.PROBE, 34.0), (Purpose.BLOCK, None)):
            steps.clear()
            measurement = bench.evaluate(bench.briefing.space.baseline, purpose).measurement
            assert measurement is not None
            assert measurement.startup_s == startup_s


def test_steps_that_the_scaler_skips_are_part_of_the_start() -> None:
    workload = Workload(Scaled(limit=16.0), targets.vectors())
    skipping = evaluate(workload, precision="fp16").measurement
    assert skipping is not None
    assert skipping.startup_s is not None
    assert skipping.startup_s > skipping.step_time_s  # at least 12 halvings from 2**16, on the first batch


def test_every_plan_compiles_for_itself_and_is_charged_for_it(step_clock: FakeTime) -> None:
    compiled = notes()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(1)
        step_clock.advance(40.0)
        return graph.forward

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        step_clock.advance(2.0)
        return F.cross_entropy(model(batch[0]), batch[1])

    model: Any = torch.compile(targets.mlp(), backend=backend)
    with LocalBench(
        Workload(model, targets.vectors(), step_fn=step_fn), CPU(), PLENTY.model_copy(update={"cold": True})
    ) as bench:
        own = bench.briefing.space.baseline
        for plan in (own, own.replace(micro_batch_size=4), own):
            compiled.clear()
            outcome = bench.evaluate(plan, Purpose.PROBE)
            assert outcome.measurement is not None, outcome.reason
            assert len(compiled) == 1
            assert outcome.measurement.startup_s == pytest.approx(40.0)
        compiled.clear()
        assert bench.evaluate(own, Purpose.BLOCK).measured
        assert compiled == []


def test_a_probe_and_a_proof_of_one_plan_have_the_same_peak() -> None:
    """A probe stops at two micro batches of two steps: beyond them nothing new is live."""
    peaks = [
        evaluate(targets.make_mlp(global_batch_size=32), purpose, micro_batch_size=4, accumulation_steps=8).measurement
        for purpose in (Purpose.PROBE, Purpose.PROOF)
    ]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].memory.judged_bytes == peaks[1].memory.judged_bytes
    assert peaks[0].memory.static_bytes == peaks[1].memory.static_bytes


def test_the_peak_is_the_one_computed_by_hand() -> None:
    """Static bytes, the step's own batch, the activations and the gradients of a model of one layer."""
    model = nn.Linear(64, 1, bias=False)
    loader = [torch.ones(32, 64)] * 2
    workload = Workload(
        model, loader, step_fn=lambda model, x: model(x).sum(), optimizer=lambda ps: torch.optim.SGD(ps, momentum=0.9)
    )
    found = evaluate(workload).measurement
    assert found is not None
    weight, batch = 64 * 4, 32 * 64 * 4
    assert found.memory.static_bytes == 2 * weight  # the weight and its momentum
    # While backward ends: the output, its scalar sum, that sum's gradient (one number, expanded) and the weight's.
    assert found.memory.judged_bytes == 2 * weight + batch + 32 * 4 + 4 + 4 + weight


def destructive(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Takes its labels out of the batch and scales the inputs in place, as many training scripts do."""
    labels = batch.pop("labels")
    batch["x"].div_(255.0)
    assert float(batch["x"].max()) > 0.9, "the inputs were scaled twice"
    return F.cross_entropy(model(batch["x"]), labels)


def test_a_step_that_changes_its_batch_gets_a_new_one_each_time() -> None:
    batches = [{"x": torch.full((8, 8), 255.0), "labels": torch.zeros(8, dtype=torch.long)}] * 2
    workload = Workload(targets.mlp(), batches, step_fn=destructive, global_batch_size=16)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        assert bench.briefing.space.refused == ()  # the gates too
        for purpose in (Purpose.PROBE, Purpose.BLOCK, Purpose.PROOF, Purpose.BLOCK):
            outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
            assert outcome.measured, outcome.reason
    assert batches[0].keys() == {"x", "labels"}
    assert float(batches[0]["x"].max()) == 255.0


@pytest.mark.fault("F45")
def test_steps_that_the_scaler_skips_do_not_prove_anything() -> None:
    updates = notes()

    class Sgd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            updates.append(1)
            return super().step(closure)

    workload = Workload(Scaled(limit=16.0), targets.vectors(), optimizer=lambda ps: Sgd(ps, lr=0.01))
    outcome = evaluate(workload, Purpose.PROOF, precision="fp16")
    assert outcome.measured, outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.worst_steps == 3
    # 3 on the worst batch, the warm-up, the measured ones, 3 for the phases: each one an update.
    timed = len(outcome.measurement.warmup_times_s) + len(outcome.measurement.step_times_s)
    assert len(updates) == 3 + timed + 3


class Dying(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device that stops answering."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = False

    def synchronize(self) -> None:
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")


@pytest.mark.fault("F14")
def test_a_device_that_no_longer_answers_is_poisoned() -> None:
    device, workload = Dying(), targets.make_mlp()
    with LocalBench(workload, device, PLENTY) as bench:
        workload.model.get_submodule("2").register_forward_hook(lambda *_: setattr(device, "dead", True))
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert outcome.status is Status.POISONED
        assert outcome.reason == "the device no longer answers: CUDA error: an illegal memory access was encountered"


class Enforcing(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device that writes down when its limit is on."""

    def __init__(self) -> None:
        super().__init__()
        self.limited: list[bool] = [False]
        self.steps, self.budgets = notes(), notes()

    @contextmanager
    def limit(self, budget_bytes: int, static: Callable[[], int]) -> Iterator[None]:
        self.budgets.append((budget_bytes, static()))
        self.limited[0] = True
        yield
        self.limited[0] = False


@pytest.mark.parametrize("is_host", [False, True])
def test_the_limit_is_on_while_steps_run(is_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the very first step on an accelerator, as in training; on a host a first step loads libraries without it."""
    monkeypatch.setattr(Enforcing, "is_host", is_host)
    device, workload = Enforcing(), targets.make_mlp()
    workload.model.register_forward_hook(lambda m, x, y: device.steps.append((device.limited[0], len(y))))
    with LocalBench(workload, device, PLENTY.model_copy(update={"enforce": True})) as bench:
        device.steps.clear()
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    assert device.steps[0] == (not is_host, 8)
    assert set(device.steps[1:]) == {(True, 8)}
    parameters = sum(p.nbytes for p in workload.model.parameters())
    ((budget, static),) = device.budgets
    assert budget == 2**30
    assert (static >= 3 * parameters) is is_host  # the state of AdamW is there already


def test_signs_of_life_come_with_every_step() -> None:
    beats: list[str] = []
    with LocalBench(targets.make_mlp(), CPU(), PLENTY, beats.append) as bench:
        assert beats == ["survey", "open"]
        beats.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.measurement is not None
    steps = len(outcome.measurement.warmup_times_s) + len(outcome.measurement.step_times_s)
    assert beats == ["fetch", "prepare", *["step"] * (steps + 3)]


def test_a_plan_far_slower_than_the_fastest_is_not_timed_further(step_clock: FakeTime) -> None:
    calls = notes()

    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(len(batch[0]))
        step_clock.advance(0.06)  # whatever the size: per sample, one sample is 32 times slower than 32
        return F.cross_entropy(model(batch[0]), batch[1])

    workload = Workload(targets.mlp(), targets.vectors(batch_size=32), step_fn=slow)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        large, small = Plan(values={"micro_batch_size": 32}), Plan(values={"micro_batch_size": 1})
        assert bench.evaluate(large, Purpose.PROBE).measured
        calls.clear()
        outcome = bench.evaluate(small, Purpose.PROBE)
        assert calls == [1, 1]
        assert outcome.measured
        assert outcome.measurement is not None
        assert outcome.measurement.warnings[0].startswith("not timed further: ")
        assert outcome.measurement.samples_per_s == pytest.approx(1 / 0.06)
        assert outcome.measurement.startup_s == pytest.approx(0.0)
        # What is raced or proven is run in full.
        block = bench.evaluate(small, Purpose.BLOCK).measurement
        proof = bench.evaluate(small, Purpose.PROOF).measurement
        assert block is not None
        assert proof is not None
        assert len(block.step_times_s) == 4
        assert len(proof.step_times_s) >= 3
