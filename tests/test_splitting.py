"""A micro batch that runs out of memory is cut in two, and its step is that of the whole micro batch."""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.errors import UsageError
from autofit.core.plan import Plan
from autofit.guard import Guard
from autofit.prepare import prepare
from autofit.splitting import Splitting, check_step, checked, wanted
from autofit.strategies import members
from autofit.workloads.batch_algebra import split
from autofit.workloads.first_loss import loss_of
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, Splits, StepBatch, TrainStep
from autofit.workloads.tree import Batch
from autofit.workloads.votes import Votes
from autofit.workloads.workload import Workload
from tests.fakes.memory import TEXT, CappedMemory
from tests.probing import targets
from tests.workloads.architectures import ARCHITECTURES, cross_entropy, mlp, spectral

Made = Callable[[], Workload]
Faults = Callable[[TrainStep], Any]
STEPS = 3


def splitting_step(workload: Workload, **plan: Any) -> TrainStep:
    """The step of a workload, as `Fit.prepare` makes it with on_oom="split"."""
    device, guard = devices.choose("cpu"), Guard.of(workload)
    with guard:
        source = source_of(workload.loader)
        loss = loss_of(workload, source, torch.device("cpu"))
        weighing, moving = checked(workload, source, loss, device, guard)
    draft = Draft.of(workload, loss, torch.device("cpu"), weighing)
    step = prepare(Plan(values=plan), draft, members())
    check_step(step)
    step.splitting = Splitting(device, weighing, moving)
    workload.model.train()
    return step


def seeded(make: Made) -> Workload:
    torch.manual_seed(1)
    return make()


def generator_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


def trained(
    make: Made, faults: Faults, parts: Sequence[int] = (8,), **plan: Any
) -> tuple[list[float], nn.Module, Splits, list[Any]]:
    """Trains a few steps of so many samples in each part, with faults; returns losses, model, splits and generators."""
    workload = seeded(make)
    step, losses = splitting_step(workload, **plan), list[float]()
    torch.manual_seed(2), random.seed(2), np.random.seed(2)
    with warnings.catch_warnings(), faults(step):
        warnings.simplefilter("ignore")
        for batch in workload.loader:
            whole = split(batch, parts) if len(parts) > 1 else [batch]
            losses.append(float(step(StepBatch.of(whole))))
    assert step.optimizer is not None
    assert all(p.grad is None for p in workload.model.parameters())
    return losses, workload.model, step.splits, generator_states()


@contextmanager
def nothing(step: TrainStep) -> Iterator[None]:
    yield


def given(memory: CappedMemory, step: TrainStep) -> CappedMemory:
    return memory


def failing(phase: str, micro_batch: int = 1, steps: int = 1, again: bool = False) -> Faults:
    """Fails in the middle of a pass of a micro batch, once in each of so many steps; with `again` in each attempt."""

    @contextmanager
    def faults(step: TrainStep) -> Iterator[None]:
        left, armed, calls = [steps], [True], [0]
        leaves = [module for module in step.model.modules() if not list(module.children())]

        def fail(*_: Any) -> None:
            calls[0] += 1
            if step.micro_batch == micro_batch and step.phase == phase and left[0] > 0 and armed[0] and calls[0] >= 2:
                armed[0], calls[0] = again, 0
                raise torch.OutOfMemoryError(TEXT)

        def rearm(*_: Any) -> None:
            left[0], armed[0], calls[0] = left[0] - 1, True, 0

        assert step.optimizer is not None
        hooks: list[Any] = [step.optimizer.register_step_pre_hook(rearm)]
        if phase == "forward":
            hooks += [module.register_forward_hook(fail) for module in leaves]
        else:
            trained: list[Any] = [p for p in step.model.parameters() if p.requires_grad]
            hooks += [parameter.register_post_accumulate_grad_hook(fail) for parameter in trained]
        yield
        for hook in hooks:
            hook.remove()

    return faults


def assert_close(one: nn.Module, other: nn.Module, tolerance: float = 2e-5) -> None:
    """Compares parameters and buffers."""
    pairs = zip(one.state_dict().items(), other.state_dict().values(), strict=True)
    for (name, left), right in pairs:
        assert torch.allclose(left, right, rtol=tolerance, atol=tolerance / 10), name


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    for (name, left), right in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("faults", "parts"),
    [
        (failing("forward", steps=2), (8,)),
        (failing("backward", steps=2), (8,)),
        (failing("backward", micro_batch=2, steps=2), (4, 4)),
    ],
    ids=["forward", "backward", "later micro batch"],
)
def test_a_split_step_is_the_step_of_the_whole_micro_batch(name: str, faults: Faults, parts: Sequence[int]) -> None:
    losses, expected, _, rng = trained(ARCHITECTURES[name], nothing, parts)
    found_losses, found, splits, found_rng = trained(ARCHITECTURES[name], faults, parts)
    assert splits.micro_batches >= 2
    assert splits.largest_samples == parts[0]
    assert found_losses == pytest.approx(losses, rel=1e-5)
    assert_close(found, expected)
    assert found_rng == rng


@pytest.mark.parametrize("name", ["mlp", "convnet", "lstm", "gpt2", "vit"])
def test_it_fits_where_the_whole_micro_batch_does_not(name: str) -> None:
    """The failed pass holds nothing while its parts run: the limit is between the peaks of the parts and the whole."""
    peaks = []
    for sizes in ((8,), (4, 4)):
        memory = CappedMemory()
        losses, expected, *_ = trained(ARCHITECTURES[name], partial(given, memory), sizes)
        peaks.append(memory.peak_bytes)
    assert peaks[1] < peaks[0]
    capped = CappedMemory(sum(peaks) // 2)
    found_losses, found, splits, _ = trained(ARCHITECTURES[name], partial(given, capped))
    assert splits.micro_batches >= capped.ooms >= 1
    assert found_losses == pytest.approx(losses, rel=1e-5)
    assert_close(found, expected)


def test_after_two_failures_of_a_shape_its_micro_batches_are_cut_before_they_run() -> None:
    workload, sizes = seeded(mlp), list[int]()
    step = splitting_step(workload)

    def small(module: nn.Module, inputs: Any) -> None:
        sizes.append(len(inputs[0]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError(TEXT)

    workload.model.register_forward_pre_hook(small)
    with pytest.warns(UserWarning, match="ran out of memory"):
        step(first_batch(workload))
    assert sizes == [8, 4, 2, 2, 4, 2, 2, 2, 2], "the step begins again after each failure"
    sizes.clear()
    step(first_batch(workload))
    assert sizes == [8, 2, 2, 2, 2]
    sizes.clear()
    step(first_batch(workload))
    assert sizes == [2, 2, 2, 2]
    assert step.splits.micro_batches == 9
    assert step.splits.largest_samples == 8


class Drawing(nn.Module):
    """Draws from three generators in each pass, has dropout, and counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 32), nn.Dropout(0.3), nn.Linear(32, 4)
        self.register_buffer("mean", torch.zeros(32))
        self.mean: torch.Tensor
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.01 * float(torch.rand(1)))
        hidden = self.drop(hidden + 0.01 * random.random() + 0.01 * float(np.random.rand()))
        out: torch.Tensor = self.last(hidden.relu())
        return out


def drawing() -> Workload:
    model = Drawing()
    optimizer = lambda params: torch.optim.SGD(params, lr=0.05)  # noqa: E731  # as users write it
    return Workload(model, targets.vectors(24, 8), step_fn=cross_entropy, optimizer=optimizer)


@pytest.mark.parametrize("make", [drawing, spectral], ids=["drawing", "spectral"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_nothing_of_a_failed_pass_is_left(make: Made, phase: str) -> None:
    """Buffers, counters and generators: all as if the parts had run from the beginning, to the bit."""

    def ordered() -> Workload:
        workload = make()
        loader = torch.utils.data.DataLoader(workload.loader.dataset, 8)
        return Workload(workload.model, loader, step_fn=cross_entropy, optimizer=workload.optimizer)

    losses, expected, _, rng = trained(ordered, nothing, (4, 4))
    found_losses, found, splits, found_rng = trained(ordered, failing(phase, steps=2))
    assert splits.micro_batches == STEPS  # in the third, micro batches of the shape that failed are cut at once
    assert found_losses == losses
    assert_same_bits(found, expected)
    assert getattr(found, "calls", 0) == getattr(expected, "calls", 0)
    assert found_rng == rng


def first_batch(workload: Workload) -> Batch:
    return next(iter(workload.loader))


def test_it_warns_once_counts_and_records_whenever_the_number_has_doubled() -> None:
    workload, seen = seeded(mlp), list[Splits]()
    step = splitting_step(workload)
    assert step.splitting is not None

    def record(splits: Splits) -> str:
        seen.append(splits)
        return "the disk is full"

    step.splitting.record = record  # type: ignore[attr-defined]  # of a `Splitting`
    with failing("forward", steps=2)(step):
        with pytest.warns(
            UserWarning, match=r"8 samples ran out of memory.*not recorded, since the disk is full"
        ) as found:
            step(first_batch(workload))
        assert [warning.filename for warning in found] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(6):
                step(first_batch(workload))
    assert [each.micro_batches for each in seen] == [1, 2, 4]
    assert step.splits.micro_batches == 7
    assert step.splits.first_at <= step.splits.last_at


def test_at_one_sample_the_error_is_raised_as_it_is_and_the_state_is_put_back() -> None:
    workload = seeded(drawing)
    step, batch = splitting_step(workload), first_batch(workload)
    model = workload.model
    assert isinstance(model, Drawing)
    before, mean = generator_states(), model.mean.clone()
    text = "out of memory"
    with (
        failing("backward", again=True)(step),
        pytest.warns(UserWarning, match=text),
        pytest.raises(torch.OutOfMemoryError),
    ):
        step(batch)
    assert generator_states() == before
    assert torch.equal(model.mean, mean)
    assert model.calls == 0
    assert all(p.grad is None for p in workload.model.parameters())


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_other_errors_and_those_of_the_update_are_raised_as_they_are(phase: str) -> None:
    workload = seeded(mlp)
    step = splitting_step(workload)
    error = RuntimeError("shapes differ") if phase == "forward" else torch.OutOfMemoryError(TEXT)

    def fail(*_: Any) -> None:
        raise error

    assert step.optimizer is not None
    if phase == "forward":
        workload.model.register_forward_hook(fail)
    else:
        step.optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError) as found:
        step(first_batch(workload))
    assert found.value is error
    assert step.splits == Splits()


def test_a_batch_that_the_step_empties_is_run_again() -> None:
    workload = seeded(lambda: Workload(targets.Transformer(), targets.sentences((6,)), step_fn=popping))
    step = splitting_step(workload)
    batch = first_batch(workload)
    with failing("forward")(step), pytest.warns(UserWarning, match="ran out of memory"):
        step(batch)
    assert "labels" in batch


def popping(model: nn.Module, batch: Any) -> torch.Tensor:
    labels = batch.pop("labels")
    return nn.functional.mse_loss(model(batch["input_ids"]).mean((1, 2)), labels.float().mean(1))


def test_a_batch_that_the_step_writes_to_cannot_be_run_again() -> None:
    def writing(model: nn.Module, batch: Any) -> torch.Tensor:
        batch[0].mul_(2)
        return cross_entropy(model, batch)

    workload = seeded(lambda: Workload(targets.mlp(), targets.vectors(), step_fn=writing))
    step = splitting_step(workload)
    with failing("forward")(step), pytest.raises(torch.OutOfMemoryError) as found:
        step(first_batch(workload))
    assert "writes into its batch" in found.value.__notes__[0]


def test_gradients_that_were_set_before_are_not_lost() -> None:
    workload = seeded(mlp)
    step = splitting_step(workload)
    for parameter in workload.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with failing("forward")(step), pytest.raises(torch.OutOfMemoryError) as found:
        step(first_batch(workload))
    assert "gradients were set before the step" in found.value.__notes__[0]
    assert all(p.grad is not None for p in workload.model.parameters())


def batch_statistics() -> Workload:
    layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return Workload(layers, targets.vectors(), step_fn=cross_entropy)


def contrastive() -> Workload:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = nn.functional.normalize(model(batch[0]), dim=1)
        return nn.functional.cross_entropy(found @ found.T / 0.1, torch.arange(len(found)).roll(1))

    return Workload(targets.mlp(), targets.vectors(), step_fn=loss)


def partly_held() -> Workload:
    model = targets.mlp()
    return Workload(model, targets.vectors(), step_fn=cross_entropy, optimizer=torch.optim.SGD(model[0].parameters()))


def moving_teacher() -> Workload:
    """Its optimizer step is in a hook of the backward pass."""
    model: Any = targets.mlp()

    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.1)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return Workload(model, targets.vectors(), step_fn=cross_entropy)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (batch_statistics, "accumulation changes the gradient"),
        (contrastive, "accumulation changes the gradient"),
        (partly_held, "the optimizer does not hold 1.weight"),
        (moving_teacher, "a pass changes model.0.weight"),
    ],
)
def test_a_training_that_cannot_be_split_is_refused_at_once(make: Made, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"on_oom='split', but .*{reason}.*Leave on_oom out"):
        splitting_step(seeded(make))


@pytest.mark.parametrize(
    "values",
    [{"checkpointed_blocks": 2}, {"optimizer_implementation": "fused"}, {"precision": "fp16"}, {"precision": "bf16"}],
    ids=str,
)
def test_the_techniques_of_a_plan_are_kept(values: dict[str, Any]) -> None:
    def make() -> Workload:
        loader = torch.utils.data.DataLoader(targets.Sentences((6, 9), 24), 8, collate_fn=targets.pad)
        return Workload(targets.Transformer(), loader, step_fn=targets.sample_mean)

    losses, expected, _, rng = trained(make, nothing, (4, 4), **values)
    found_losses, found, splits, found_rng = trained(make, failing("backward", steps=2), **values)
    assert splits.micro_batches == STEPS
    assert found_losses == losses
    assert_same_bits(found, expected)
    assert found_rng == rng


def uncountable() -> Workload:
    """Its batches have one row for each word, and the offsets of the samples."""

    def joined(rows: list[Any]) -> Any:
        return torch.cat([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    loader = torch.utils.data.DataLoader(targets.vectors().dataset, 8, collate_fn=joined)
    loss = lambda model, batch: cross_entropy(model, (batch[0].view(-1, 8), batch[1]))  # noqa: E731  # as users write it
    return Workload(targets.mlp(), loader, step_fn=loss)


def test_batches_whose_rows_are_not_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="the rows of its batches are not its samples"):
        splitting_step(seeded(uncountable))


def test_only_two_values_are_known() -> None:
    assert wanted("split")
    assert not wanted("raise")
    with pytest.raises(UsageError, match="found on_oom='cut'; expected 'raise' or 'split'"):
        wanted("cut")


def test_a_layout_whose_failed_pass_cannot_be_left_is_refused() -> None:
    step = splitting_step(seeded(mlp))
    ranks: Any = SimpleNamespace(count=4)
    step.draft.ranks = ranks
    with pytest.raises(UsageError, match=r"on_oom='split', but its ranks cannot leave a failed pass.*"):
        check_step(step)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[1, 2], [-1, -1]], [(1, 0.5), (1, 0.5)]),
        ([[1, 2]], [(1, 0.5), (1, 0.5)]),
        ([[1, 2], [-1, 3]], [(1, 2 / 3), (1, 1 / 3)]),
    ],
    ids=["one half counts", "one sample", "both count"],
)
def test_of_several_ranks_each_makes_two_parts_whose_weights_add_up(
    labels: list[list[int]], expected: list[tuple[int, float]]
) -> None:
    splitting = Splitting(devices.choose("cpu"), Weighing("[1]", ignored=-1), votes=Votes(None, 1, 2))
    batch = [torch.ones(len(labels), 2), torch.tensor(labels)]
    parts = splitting._in_two((batch, 1.0))
    assert [len(part[0]) for part, _ in parts] == [size for size, _ in expected]
    assert [weight for _, weight in parts] == pytest.approx([weight for _, weight in expected])
    assert all((part[1] != -1).any() for part, _ in parts)


def test_gradients_that_a_pass_uses_up_are_refused() -> None:
    with pytest.raises(UsageError, match="used up within its backward pass"):
        splitting_step(seeded(mlp), optimizer_in_backward=True)


def test_what_is_compiled_runs_eagerly_in_parts() -> None:
    workload = seeded(ARCHITECTURES["unet"])
    step, graphs = splitting_step(workload), list[Any]()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    workload.model.compile(backend=backend)
    step.draft.compiled, batch = True, first_batch(workload)
    step(batch)
    assert len(graphs) == 1
    with failing("backward")(step), pytest.warns(UserWarning, match="ran out of memory"):
        step(batch)
    assert step.splits.micro_batches == 1
    step(batch)
    assert len(graphs) == 1
    torch._dynamo.reset()
