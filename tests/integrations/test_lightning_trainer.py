"""What a Lightning Trainer is asked and given: trainings that have no plan's step are refused by name."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler

from autofit.core.errors import UsageError, WorkloadError
from autofit.fit import Fit
from autofit.integrations.lightning import (
    ApplyPlan,
    AutofitCallback,
    batch_size_of,
    check_loader,
    check_measurable,
    check_precision,
    check_trainer,
    set_batch,
    set_clipping,
    step_of,
    train_loader,
    without_logging,
)
from tests.conformance.test_exporters import OWN, answer
from tests.integrations.lightning_modules import FILTERS, Data, Net, loader, samples, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(*FILTERS)]


def with_loaders(loaders: Any) -> Any:
    made = trainer()
    made.fit_loop._data_source.instance = loaders
    return made


@pytest.mark.parametrize("asked", [{"gradient_clip_val": 3.0}, {"gradient_clip_algorithm": "value"}], ids=str)
def test_another_clipping_is_refused_with_both_values(asked: dict[str, Any]) -> None:
    given, plain = (answer(OWN, settings={"max_grad_norm": norm}) for norm in ("0.01", "None"))
    for callback in (ApplyPlan(Fit(given)), AutofitCallback(max_grad_norm=0.01)):
        with pytest.raises(UsageError, match=r"found a Trainer with gradient_clip_val=.*the plan clips .* norm 0\.01"):
            trainer(callback, **asked).fit(Net(), loader())
    trainer(ApplyPlan(Fit(plain)), **asked).fit(Net(), loader())


def test_a_norm_is_given_to_a_trainer_that_has_none_and_none_leaves_its_own() -> None:
    for given, norm, expected in ((None, 0.5, 0.5), (0.5, 0.5, 0.5), (3.0, None, 3.0), (None, None, None)):
        made = trainer(gradient_clip_val=given)
        set_clipping(made, norm)
        assert made.gradient_clip_val == expected
    with pytest.raises(UsageError, match=r"gradient_clip_val=0, by norm; the plan clips gradients to the L2 norm 0\.5"):
        set_clipping(trainer(gradient_clip_val=0), 0.5)


def test_a_precision_that_is_that_of_the_plan_is_no_reason_to_stop() -> None:
    check_precision(trainer(precision="bf16-mixed"), "bf16-mixed")
    with pytest.raises(UsageError, match=r"precision='bf16-mixed'; the plan needs '32-true'"):
        check_precision(trainer(precision="bf16-mixed"), "32-true")


def test_manual_optimization_as_with_several_optimizers_is_refused() -> None:
    net = Net()
    net.automatic_optimization = False
    with pytest.raises(UsageError, match="found Net with manual optimization"):
        check_trainer(trainer(), net)


def test_several_processes_are_refused_with_both_values() -> None:
    found = SimpleNamespace(world_size=4, callbacks=[])
    with pytest.raises(UsageError, match="found a Trainer with 4 processes; expected 1"):
        check_trainer(found, Net())


def test_accumulation_that_a_callback_schedules_is_refused() -> None:
    with pytest.raises(UsageError, match="found the callback GradientAccumulationScheduler"):
        check_trainer(trainer(GradientAccumulationScheduler({0: 2})), Net())


def test_a_usual_training_is_not_refused() -> None:
    check_trainer(trainer(), Net())
    check_measurable(trainer(), Net())


@pytest.mark.parametrize("hook", ["backward", "optimizer_step", "optimizer_zero_grad"])
def test_a_module_with_another_step_is_refused_by_name(hook: str) -> None:
    kind = type("Special", (Net,), {hook: lambda self, *args: None})
    with pytest.raises(UsageError, match=rf"found Special\.{hook}, which replaces a part"):
        check_measurable(trainer(), kind())


def test_several_optimizers_are_refused() -> None:
    made, net = trainer(), Net()
    made.strategy.optimizers = [torch.optim.SGD(net.parameters()), torch.optim.SGD(net.parameters())]
    with pytest.raises(UsageError, match=r"found 2 optimizers in Net\.configure_optimizers"):
        check_measurable(made, net)


@pytest.mark.parametrize("make", [dict, list, CombinedLoader])
def test_several_loaders_are_refused(make: Any) -> None:
    loaders = {"one": loader(), "other": loader()}
    given = make(loaders.values()) if make is list else make(loaders)
    with pytest.raises(UsageError, match=f"found several train loaders \\({make.__name__}\\)"):
        train_loader(with_loaders(given))


def test_a_list_of_batches_is_one_loader() -> None:
    batches = list(loader())
    assert train_loader(with_loaders(batches)) is batches


class Alternate(Sampler[list[int]]):
    """Batches of even numbers, and of odd ones."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 2], [1, 3])


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (lambda: loader(4), 4),
        (lambda: DataLoader(samples(), batch_sampler=Alternate()), None),
        (lambda: list(loader(4)), None),
    ],
)
def test_the_batch_of_a_loader(given: Any, size: int | None) -> None:
    assert batch_size_of(given()) == size
    check_loader(given(), 4)


def test_another_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="found a train loader with batch_size=2; the plan has micro_batch_size=4"):
        check_loader(loader(2), 4)


def test_a_loader_is_rebuilt_with_its_sampler_and_keeps_what_it_is() -> None:
    given = DataLoader(samples(), batch_size=8, sampler=RandomSampler(samples()), drop_last=True)
    made, fit = with_loaders(given), Fit(answer(OWN.replace(micro_batch_size=4, accumulation_steps=2)))
    net, before = Net(), torch.random.get_rng_state()
    set_batch(made, net, fit, "batch_size", None)
    rebuilt = made.fit_loop._data_source.instance
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (given.batch_size, rebuilt.batch_size, made.accumulate_grad_batches) == (8, 4, 2)
    assert (type(rebuilt.sampler), rebuilt.drop_last, rebuilt.dataset) == (RandomSampler, True, given.dataset)


def test_the_step_is_the_training_step_with_its_hooks() -> None:
    class Scaled(Net):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] * 0, batch[1]]

        def training_step(self, batch: Any) -> Any:  # type: ignore[override]  # as Lightning allows
            assert not batch[0].any()
            return {"loss": self.line(batch[0]).sum()}

    made, net = trainer(), Scaled()
    made.strategy.connect(net)
    made._data_connector.attach_data(net)
    loss = step_of(made, net)(net, next(iter(loader())))
    torch.testing.assert_close(loss, net.line.bias.sum() * 8)


def test_a_copy_of_the_module_asks_the_same_trainer() -> None:
    made, net, copied = trainer(), Net(), Net()
    made.strategy.connect(net)
    net.trainer = made
    assert copied._trainer is None
    with without_logging(copied):
        step_of(made, net)(copied, next(iter(loader())))
    assert copied.trainer is made


def test_a_step_without_a_loss_is_refused() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    made, net = trainer(), Skipping()
    made.strategy.connect(net)
    with pytest.raises(WorkloadError, match="training_step returned NoneType; expected a loss"):
        step_of(made, net)(net, next(iter(loader())))


def test_logging_is_off_inside_and_as_before_outside() -> None:
    class Outer(Net):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.other = Net(), nn.Linear(1, 1)

    net, calls = Outer(), []
    net.inner.log = lambda *args: calls.append(args)  # the user's
    with without_logging(net):
        net.log("loss", 1.0)
        net.inner.log_dict({"loss": 1.0})
        net.inner.log("loss")
    assert calls == [("loss",)]
    assert "log" not in vars(net)
    assert "log" in vars(net.inner)


def test_a_data_module_is_given_the_batch() -> None:
    made, net, data = trainer(), Net(), Data()
    made.datamodule, net.trainer = data, made
    made.fit_loop._data_source.instance = data
    set_batch(made, net, Fit(answer(OWN.replace(micro_batch_size=4))), "batch_size", None)
    assert data.batch_size == 4
