"""State that step functions hold."""

import functools
import random
from collections import Counter, deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.faults import holders_module
from tests.faults.holders import Holder, averaged, bits, holder, loss_of, net, parameters

CALLS = 0
HISTORY: list[float] = []
STATISTICS = {"mean": torch.zeros(2)}


@holder
def ema_model_in_a_closure() -> Holder:
    ema = net()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        averaged(ema, model)
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: parameters(ema), lambda: list(ema.parameters()))


@holder
def counter_in_a_closure() -> Holder:
    calls, scale = 0, 1.0

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls, scale
        calls, scale = calls + 1, scale * 0.9
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: [calls, scale])


@holder
def list_in_a_closure() -> Holder:
    losses: list[Any] = [0.5]

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        losses.append(loss.detach())
        return loss

    return Holder({"step_fn": step}, lambda: list(losses))


@holder
def cell_that_is_rebound() -> Holder:
    mean = torch.zeros(2)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal mean
        mean = mean * 0.9 + 0.1
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: bits(mean), lambda: [mean])


@holder
def cell_that_is_not_bound_yet() -> Holder:
    def make() -> tuple[Any, Any]:
        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            nonlocal seen  # type: ignore[misc]  # bound below, or never
            seen = batch[0].shape
            return loss_of(model, batch)

        def state() -> Any:
            try:
                return tuple(seen)
            except NameError:
                return None

        if model_is_never_this():
            seen = torch.Size()
        return step, state

    step, state = make()
    return Holder({"step_fn": step}, state)


def model_is_never_this() -> bool:
    return False


@holder
def second_optimizer_of_a_gan() -> Holder:
    critic = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.1)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        critic(model(batch[0]).detach()).mean().backward()
        optimizer.step()
        return loss_of(model, batch)

    def state() -> Any:
        return [parameters(critic), len(optimizer.state), [p.grad is None for p in critic.parameters()]]

    return Holder({"step_fn": step}, state, lambda: list(critic.parameters()))


@holder
def second_optimizer_with_state() -> Holder:
    critic = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.1)
    critic(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        critic(model(batch[0]).detach()).mean().backward()
        optimizer.step()
        return loss_of(model, batch)

    def state() -> Any:
        return [parameters(critic), [list(bits(*s.values())) for s in optimizer.state.values()]]

    return Holder({"step_fn": step}, state, lambda: [s["exp_avg"] for s in optimizer.state.values()])


class Trainer:
    """A user's own trainer."""

    def __init__(self) -> None:
        self.ema, self.calls = net(), 0
        self.losses: list[Any] = []
        self.generator = torch.Generator().manual_seed(5)
        self.python, self.numpy = random.Random(6), np.random.default_rng(7)
        self.table = np.zeros((3, 2))

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        averaged(self.ema, model)
        self.calls += 1
        torch.rand(1, generator=self.generator)
        self.python.random(), self.numpy.random()
        self.table[1] += 0.5
        loss = loss_of(model, batch)
        self.losses.append(loss.item())
        return loss

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return self.training_step(model, batch)

    def state(self) -> Any:
        generators = [self.generator.get_state(), self.python.getstate(), self.numpy.bit_generator.state]
        return [parameters(self.ema), self.calls, list(self.losses), generators, self.table.copy()]

    def objects(self) -> list[Any]:
        return [self.ema, self.losses, self.generator, self.table, *self.ema.parameters()]


@holder
def bound_method() -> Holder:
    trainer = Trainer()
    return Holder({"step_fn": trainer.training_step}, trainer.state, trainer.objects)


@holder
def callable_object() -> Holder:
    trainer = Trainer()
    return Holder({"step_fn": trainer}, trainer.state, trainer.objects)


@holder
def partial_arguments() -> Holder:
    trainer, counts = Trainer(), Counter(a=1)

    def step(first: Trainer, model: nn.Module, batch: Any, *, counts: Counter[str]) -> torch.Tensor:
        counts["a"] += 1
        return first.training_step(model, batch)

    made = functools.partial(step, trainer, counts=counts)
    return Holder({"step_fn": made}, lambda: [trainer.state(), dict(counts)], trainer.objects)


class StepModule(nn.Module):
    """A step that is a module, with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        self.centre: torch.Tensor
        self.queue = deque([torch.zeros(2)], maxlen=3)

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])
        with torch.no_grad():
            self.centre.mul_(0.9).add_(outputs.mean(0))
        self.queue.append(outputs.mean(0).detach())
        return F.cross_entropy(outputs, batch[1])


@holder
def step_that_is_a_module() -> Holder:
    step = StepModule()
    return Holder({"step_fn": step}, lambda: bits(step.centre, *step.queue), lambda: [step.centre, *step.queue])


@holder
def global_counter_and_lists() -> Holder:
    HISTORY.clear()
    return Holder(
        {"step_fn": lambda model, batch: counted(loss_of(model, batch))},
        lambda: [CALLS, list(HISTORY), STATISTICS["mean"].clone()],
        lambda: [HISTORY, STATISTICS["mean"]],
    )


def counted(loss: torch.Tensor) -> torch.Tensor:
    global CALLS  # noqa: PLW0603  # this is what is tested
    CALLS += 1
    HISTORY.append(loss.item())
    STATISTICS["mean"].add_(1)
    return loss


@holder
def global_of_another_module() -> Holder:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        holders_module.STEPS += 1
        holders_module.remember(batch[0])
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: [holders_module.STEPS, list(holders_module.SEEN)])


@holder
def default_argument_and_function_attribute() -> Holder:
    def step(model: nn.Module, batch: Any, cache: dict[str, int] = {}) -> torch.Tensor:  # noqa: B006
        cache["n"] = cache.get("n", 0) + 1
        vars(step)["calls"] = getattr(step, "calls", 0) + 1
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: [dict((step.__defaults__ or ())[0]), dict(vars(step))])


@holder
def decorated_function() -> Holder:
    calls = [0]

    @torch.enable_grad()
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: list(calls))


class Totals:
    """Counts on the class."""

    steps = 0
    seen: list[int] = []  # noqa: RUF012

    @classmethod
    def add(cls, size: int) -> None:
        cls.steps += 1
        cls.seen.append(size)
        cls.last = size  # type: ignore[attr-defined]  # the first call makes it


@holder
def attributes_of_a_class() -> Holder:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        Totals.add(len(batch[0]))
        return loss_of(model, batch)

    return Holder({"step_fn": step}, lambda: [Totals.steps, list(Totals.seen), hasattr(Totals, "last")])


@holder
def scheduler_and_scaler_in_the_step() -> Holder:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        scaler.scale(loss.detach())
        scaler.update(4.0)
        scheduler.step()
        return loss

    def state() -> Any:
        return [dict(scheduler.state_dict()), scaler.get_scale(), optimizer.param_groups[0]["lr"]]

    return Holder({"model": model, "optimizer": optimizer, "step_fn": step}, state)
