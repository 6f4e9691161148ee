"""TrainStep does what a hand-written training loop does, to the bit."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor

from autofit.core.errors import UsageError, WorkloadError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.base import Phase, Strategy
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.first_loss import resolve_forward
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import SUM, Weighing
from autofit.workloads.step import Draft, StepBatch, TrainStep, clip, static_bytes
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import OptimizerSet
from tests.probing import targets
from tests.workloads import gans

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer | None, **changes: Any) -> TrainStep:
    loss = changes.pop("loss", LossRule("loss", cross_entropy, inferred=False, about=""))
    return TrainStep(Plan(), Draft(model, loss, optimizer, torch.device("cpu"), **changes))


def batches(count: int, size: int = 8) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator))
        for _ in range(count)
    ]


def same_bits(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


def twins() -> tuple[nn.Module, nn.Module]:
    model = targets.mlp()
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_sharded_and_plain_gradients_are_clipped_together(max_norm: float) -> None:
    whole, plain = (nn.Parameter(torch.zeros(4, 2)) for _ in range(2))
    gradients = [torch.randn(4, 2) for _ in range(2)]
    with fake_ranks(2) as ranks:
        sharded = nn.Parameter(distribute_tensor(whole.detach(), ranks.mesh, [Replicate()], src_data_rank=None))
        sharded.grad = distribute_tensor(gradients[0].clone(), ranks.mesh, [Replicate()], src_data_rank=None)
        plain.grad = gradients[1].clone()
        clip([sharded, plain, nn.Parameter(torch.zeros(1))], max_norm)
        found: Any = sharded.grad
        scale = min(max_norm / float(torch.stack(gradients).norm()), 1.0)
        torch.testing.assert_close(found.to_local(), scale * gradients[0])
        torch.testing.assert_close(plain.grad, scale * gradients[1])
    clip([nn.Parameter(torch.zeros(1))], max_norm)  # without gradients


@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_a_step_equals_a_hand_written_loop_to_the_bit(accumulation_steps: int, max_norm: float | None) -> None:
    ours, theirs = twins()
    step = make_step(ours, torch.optim.AdamW(ours.parameters(), lr=0.01), max_grad_norm=max_norm)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    data = batches(5 * accumulation_steps)
    for at in range(0, len(data), accumulation_steps):
        group, expected = data[at : at + accumulation_steps], torch.tensor(0.0)
        loss = step(group[0] if accumulation_steps == 1 else StepBatch.of(group))
        for inputs, labels in group:
            part = F.cross_entropy(theirs(inputs), labels) / accumulation_steps
            part.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            expected = expected + part.detach()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(loss, expected)
        assert not loss.requires_grad
    assert same_bits(ours, theirs)
    assert not same_bits(ours, targets.mlp())


def gradient(model: nn.Module, batch: StepBatch) -> torch.Tensor:
    make_step(model, torch.optim.SGD(model.parameters())).backward(batch)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_an_uneven_last_micro_batch_counts_by_its_samples() -> None:
    ours, theirs = twins()
    inputs, labels = batches(1, size=22)[0]
    parts = [(inputs[at : at + 8], labels[at : at + 8]) for at in (0, 8, 16)]
    uneven = StepBatch.of(parts)
    whole = gradient(theirs, StepBatch.of([(inputs, labels)]))
    assert uneven.weights == [8 / 22, 8 / 22, 6 / 22]
    found = gradient(ours, uneven)
    assert (found - whole).norm() / whole.norm() < 1e-6
    evenly = gradient(targets.mlp(), StepBatch(parts, [1 / 3] * 3))
    assert (evenly - whole).norm() / whole.norm() > 1e-3


def test_the_loss_of_uneven_parts_is_the_mean_over_samples() -> None:
    model, twin = twins()
    inputs, labels = batches(1, size=22)[0]
    step = make_step(model, torch.optim.SGD(model.parameters()))
    loss = step(StepBatch.of([(inputs[:16], labels[:16]), (inputs[16:], labels[16:])]))
    torch.testing.assert_close(loss, cross_entropy(twin, (inputs, labels)).detach())


class Scaler(torch.amp.GradScaler):
    """A scaler of the user's, on the CPU; says what it was asked in which order."""

    def __init__(self, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.calls: list[str] = []

    def unscale_(self, optimizer: Any) -> None:
        self.calls.append("unscale")
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.calls.append("update")
        super().update(new_scale)


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_a_scaler_is_used_as_by_hand(max_norm: float | None) -> None:
    ours, theirs = twins()
    mine, other = Scaler(init_scale=1024.0), torch.amp.GradScaler("cpu", init_scale=1024.0)
    step = make_step(ours, torch.optim.SGD(ours.parameters(), lr=0.1), scaler=mine, max_grad_norm=max_norm)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for inputs, labels in batches(3):
        loss = step((inputs, labels))
        expected = F.cross_entropy(theirs(inputs), labels)
        other.scale(expected).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        if max_norm is not None:
            other.unscale_(optimizer)
            nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        other.step(optimizer)
        other.update()
        optimizer.zero_grad()
        assert torch.equal(loss, expected.detach())
    assert same_bits(ours, theirs)
    # Unscaled before clipping, for scaled gradients would all be clipped to nothing; else by the scaler's own step.
    first = ["step", "unscale"] if max_norm is None else ["unscale", "step"]
    assert mine.calls == [*first, "update"] * 3


def test_clipping_applies_to_the_whole_step_and_not_to_each_micro_batch() -> None:
    model = targets.mlp()
    seen: list[float] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def total_norm(*_: object) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        seen.append(float(nn.utils.get_total_norm(gradients)))

    optimizer.register_step_pre_hook(total_norm)
    make_step(model, optimizer, max_grad_norm=0.01)(StepBatch.of(batches(4)))
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_the_scheduler_advances_once_a_step_after_the_optimizer() -> None:
    model = targets.mlp()
    order: list[str] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_post_hook(lambda *_: order.append("optimizer"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    class Watched:
        def step(self) -> None:
            order.append("scheduler")
            schedule.step()

    step = make_step(model, optimizer, scheduler=Watched())
    step(StepBatch.of(batches(4)))
    step(batches(1)[0])
    assert order == ["optimizer", "scheduler"] * 2
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_inference_updates_nothing_and_leaves_no_gradients() -> None:
    ours, untouched = twins()
    batch = batches(1)[0]
    output = make_step(ours, None, loss=resolve_forward(batch, None))(batch)
    assert torch.equal(output, untouched(batch[0]).detach())
    assert output.is_inference()
    assert same_bits(ours, untouched)
    assert all(p.grad is None for p in ours.parameters())


def test_gradients_are_none_after_a_step_and_autocast_is_entered_for_each_forward_pass() -> None:
    model = targets.mlp()
    entered: list[bool] = []

    @contextmanager
    def autocast() -> Iterator[None]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            entered.append(True)
            yield

    seen: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    make_step(model, torch.optim.SGD(model.parameters()), autocast=autocast)(StepBatch.of(batches(3)))
    assert entered == [True] * 3
    assert seen == [torch.bfloat16] * 3
    assert all(p.grad is None for p in model.parameters())


def test_phases_are_told_in_order() -> None:
    model = targets.mlp()
    step = make_step(model, torch.optim.SGD(model.parameters()))
    phases: list[str] = []
    step.observe = phases.append
    step(StepBatch.of(batches(2)))
    assert phases == ["transfer", "forward", "backward"] * 2 + ["optimizer"]
    assert step.phase == "optimizer"


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_the_phase_of_a_failure_can_be_read(phase: str) -> None:
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters())

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    places: dict[str, Callable[[], Any]] = {
        "forward": lambda: model[1].register_forward_hook(fail),
        "backward": lambda: model[1].register_full_backward_hook(fail),
        "optimizer": lambda: optimizer.register_step_pre_hook(fail),
    }
    places[phase]()
    step = make_step(model, optimizer)
    with pytest.raises(RuntimeError, match="no"):
        step(batches(1)[0])
    assert step.phase == phase


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_failed_leaves_nothing_to_the_next_one(error: type[BaseException]) -> None:
    model, fails = targets.mlp(), [False, True]

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        if fails and fails.pop(0):
            raise error("in the second micro batch")
        return cross_entropy(model, batch)

    loss = LossRule("loss", compute, inferred=False, about="")
    step, batch = make_step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss), StepBatch.of(batches(2))
    expected = copy.deepcopy(model)
    with pytest.raises(error):
        step(batch)
    assert all(each.grad is None for each in model.parameters())
    step(batch)
    make_step(expected, torch.optim.SGD(expected.parameters(), lr=0.1))(batch)
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_a_batch_is_brought_to_the_device_of_the_step() -> None:
    seen: list[Any] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(batch)
        loss: torch.Tensor = model(torch.zeros(1, 8)).sum()
        return loss

    model = targets.mlp()
    step = make_step(model, torch.optim.SGD(model.parameters()), loss=LossRule("l", loss, False, ""))
    there: dict[str, Any] = {"x": torch.zeros(2, 8), "name": "a"}
    step(there)
    assert seen[-1] is there  # nothing to move, nothing copied
    step.draft.device = torch.device("meta")
    step(there)
    assert seen[-1]["x"].device.type == "meta"
    assert seen[-1]["name"] == "a"
    assert there["x"].device.type == "cpu"


def test_images_are_brought_into_the_layout_of_the_draft() -> None:
    seen: list[Any] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.extend(batch)
        loss: torch.Tensor = model(torch.zeros(1, 8)).sum()
        return loss

    model = targets.mlp()
    rule = LossRule("l", loss, False, "")
    step = make_step(model, torch.optim.SGD(model.parameters()), loss=rule, memory_format=torch.channels_last)
    step((torch.zeros(2, 3, 4, 4), torch.zeros(2)))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert not seen[0].is_contiguous()
    assert seen[1].is_contiguous()


class Marking(Strategy):
    """Marks the model while it is applied."""

    name, phase, owns = "marking", Phase.MODULES, {"mark": None}

    def offer(self, facts: Any) -> Any:
        raise NotImplementedError

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        before = draft.autocast
        vars(draft.model)["marked"] = True
        draft.autocast = torch.inference_mode
        yield
        del draft.model.marked
        draft.autocast = before


def test_close_takes_the_strategies_off_and_keeps_the_trained_weights() -> None:
    model, before = twins()
    draft = Draft(
        model,
        LossRule("l", cross_entropy, False, ""),
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.device("cpu"),
    )
    step = prepare(Plan(values={"mark": True}), draft, [Marking()])
    assert model.marked
    step.draft.autocast = nullcontext
    step(batches(1)[0])
    step.close()
    assert not hasattr(model, "marked")
    assert draft.autocast is nullcontext
    assert not same_bits(model, before)
    step.close()  # again is no error
    with prepare(Plan(values={"mark": True}), draft, [Marking()]):
        assert model.marked
    assert not hasattr(model, "marked")


def labelled(counts: tuple[int, ...]) -> Batches:
    """Micro batches of one sample with so many labels that count."""
    inputs = torch.randn(len(counts), 6, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.full((len(counts), 6), -100)
    for at, count in enumerate(counts):
        labels[at, :count] = 1
    return [(inputs[at : at + 1], labels[at : at + 1]) for at in range(len(counts))]


def token_mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@pytest.mark.parametrize("counts", [(1, 5, 2, 4), (3, 0, 6), (0, 0, 1)])
def test_a_step_weighted_by_labels_is_that_of_the_whole_batch(counts: tuple[int, ...]) -> None:
    """D10; a micro batch without any label, whose mean is 0 / 0, is left out."""
    parts = labelled(counts)
    whole = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    gradients, losses = [], []
    for batch in (StepBatch((whole,), (1.0,)), StepBatch.of(parts)):
        model = targets.mlp()
        rule = LossRule("loss", token_mean, inferred=False, about="")
        step = make_step(model, None, loss=rule, weighing=Weighing("[1]", ignored=-100))
        losses.append(step.backward(batch))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)
    assert losses[1] == pytest.approx(float(losses[0]))


def test_a_step_of_a_sum_adds_up_its_micro_batches_whatever_their_sizes() -> None:
    def total(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum")

    inputs, labels = (torch.cat(column) for column in zip(*labelled((5, 5, 5)), strict=True))
    gradients, losses = [], []
    for batch in (
        StepBatch(((inputs, labels),), (1.0,)),
        StepBatch.of([(inputs[:1], labels[:1]), (inputs[1:], labels[1:])]),
    ):
        model = targets.mlp()
        step = make_step(model, None, loss=LossRule("loss", total, inferred=False, about=""), weighing=SUM)
        losses.append(step.backward(batch))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)
    assert losses[1] == pytest.approx(float(losses[0]))


def test_a_step_in_which_nothing_counts_is_what_the_user_has() -> None:
    rule = LossRule("loss", token_mean, inferred=False, about="")
    step = make_step(targets.mlp(), None, loss=rule, weighing=Weighing("[1]", ignored=-100))
    assert step.backward(StepBatch.of(labelled((0, 0)))).isnan()


def test_a_graph_that_was_used_before_is_explained() -> None:
    def twice(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = cross_entropy(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        return loss

    model = targets.mlp()
    step = make_step(model, torch.optim.SGD(model.parameters()), loss=LossRule("step_fn", twice, False, ""))
    with pytest.raises(WorkloadError, match=r"if step_fn calls backward\(\) or optimizer.step\(\) itself"):
        step(batches(1)[0])


def test_a_step_of_the_user_is_run_as_he_wrote_it_to_the_bit() -> None:
    made, by_hand = gans.models(), gans.models()
    given, others = gans.optimizers(made), gans.optimizers(by_hand)
    step = make_step(made, OptimizerSet(given), loss=rule_of_update(gans.update))
    for batch in gans.loader():
        before = torch.get_rng_state()
        loss = step(batch)
        torch.set_rng_state(before)
        assert torch.equal(loss, sum(gans.update(by_hand, others, batch).values(), torch.zeros(())).detach())
    for name, value in made.state_dict().items():
        assert torch.equal(value, by_hand.state_dict()[name])


def test_a_step_of_the_user_has_one_micro_batch_and_advances_the_schedule() -> None:
    workload = gans.workload()
    draft = Draft.of(workload, rule_of_update(gans.update), torch.device("cpu"))
    assert draft.one_pass
    optimizers = workload.optimizer
    assert isinstance(optimizers, dict)
    draft.scheduler = torch.optim.lr_scheduler.StepLR(optimizers["critic"], 1, gamma=0.5)
    step, (first, second) = TrainStep(Plan(), draft), list(gans.loader())[:2]
    phases: list[str] = []
    step.observe = phases.append
    step(first)
    assert optimizers["critic"].param_groups[0]["lr"] == pytest.approx(5e-3)
    assert phases == ["transfer", "forward"]
    with pytest.raises(UsageError, match="found 2 micro batches in a step that uses up its gradients in one pass"):
        step(StepBatch.of([first, second]))


def test_static_bytes_counts_each_storage_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    step = make_step(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert static_bytes(step) == 64 + 4 * 16 + 8  # one weight; scale, shift, mean, variance; a count
    model.get_parameter("0.weight").grad = torch.zeros(4, 4)
    assert static_bytes(step) == 2 * 64 + 4 * 16 + 8
    assert step.optimizer is not None
    step.optimizer.step()  # momentum of the weight
    assert static_bytes(step) == 3 * 64 + 4 * 16 + 8
