"""A Lightning training under a plan that is given, and under one that the training itself looks for."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler

from autofit.api import tune
from autofit.core.errors import SpaceError, UsageError, WorkloadError
from autofit.core.loading import Loading as LoadingRecord
from autofit.core.loading import LoadingTrial
from autofit.core.plan import KnobValue
from autofit.fit import Fit
from autofit.integrations import lightning as integration
from autofit.integrations.lightning import (
    ApplyPlan,
    AutofitCallback,
    _batch_size_of,
    _check_loader,
    _check_measurable,
    _check_precision,
    _check_trainer,
    _set_batch,
    _set_clipping,
    _step_of,
    _train_loader,
    _without_logging,
    trainer_arguments,
)
from tests.conformance.test_exporters import OWN, answer
from tests.cpu import needs_bf16
from tests.digests import digest_of
from tests.integrations.lightning_modules import FILTERS, Data, Loading, Net, loader, samples, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(*FILTERS)]


def fit(**values: KnobValue) -> Fit:
    return Fit(answer(OWN.replace(**{"micro_batch_size": 4, "accumulation_steps": 2, **values})))


def assert_in_effect(net: Any, dtype: torch.dtype = torch.float32) -> None:
    """Two steps of two micro batches of four samples."""
    assert net.rows == [4, 4, 4, 4]
    assert set(net.dtypes) == {dtype}
    assert net.updates == [2, 4]


def test_the_arguments_of_a_trainer() -> None:
    assert trainer_arguments(fit(precision="bf16")) == {"precision": "bf16-mixed", "accumulate_grad_batches": 2}


def clipped(norm: str = "0.01") -> Fit:
    given = answer(OWN.replace(micro_batch_size=4, accumulation_steps=2), settings={"max_grad_norm": norm})
    return Fit(given)


def test_clipping_is_an_argument_of_a_trainer() -> None:
    assert trainer_arguments(clipped())["gradient_clip_val"] == 0.01


@pytest.mark.parametrize("arguments", [{}, trainer_arguments(clipped())], ids=["none", "the plan's"])
def test_a_training_clips_as_the_plan_does(arguments: dict[str, Any]) -> None:
    norms: list[float] = []

    class Watched(Net):
        def optimizer_step(self, *given: Any, **named: Any) -> None:
            super().optimizer_step(*given, **named)
            norms.append(float(nn.utils.get_total_norm([p.grad for p in self.parameters()])))

    trainer(ApplyPlan(clipped()), **arguments).fit(Watched(), loader())
    assert norms == pytest.approx([0.01] * 2, rel=1e-3)


def test_what_no_argument_expresses_is_said() -> None:
    with pytest.warns(
        UserWarning,
        match=r"=fused \(write: torch.optim.*checkpointed_blocks=2 \(write: .*; unheard_of=on",
    ):
        trainer_arguments(fit(optimizer_implementation="fused", checkpointed_blocks=2, unheard_of="on"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plan_is_in_effect_with_a_loader_that_is_passed_to_fit(precision: str) -> None:
    plan, net = fit(precision=precision), Net()
    trainer(ApplyPlan(plan), **trainer_arguments(plan)).fit(net, loader())
    assert_in_effect(net, torch.bfloat16 if precision == "bf16" else torch.float32)


def test_a_plan_is_in_effect_with_the_loader_of_a_module() -> None:
    net = Loading()
    trainer(ApplyPlan(fit())).fit(net)
    assert_in_effect(net)


def test_a_plan_is_in_effect_with_a_data_module_under_any_name() -> None:
    class Named(Data):
        def __init__(self) -> None:
            super().__init__()
            self.samples, self.workers = 8, 5

        def train_dataloader(self) -> Any:
            return loader(self.samples)

    loading = LoadingRecord(needed_per_s=1.0, trials=(LoadingTrial(workers=2),), workers=2, prefetch_factor=2)
    given = fit().answer
    chosen = Fit(given.model_copy(update={"proof": given.proof.model_copy(update={"loading": loading})}))
    net, data = Net(), Named()
    trainer(ApplyPlan(chosen, batch_arg="samples", workers_arg="workers")).fit(net, datamodule=data)
    assert_in_effect(net)
    assert data.workers == 2


def test_a_loader_made_early_for_a_schedule_does_not_stay() -> None:
    class Scheduled(Loading):
        def configure_optimizers(self) -> Any:
            self.expected = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    net = Scheduled()
    trainer(ApplyPlan(fit()), max_steps=-1, max_epochs=1).fit(net)
    assert net.expected == len(net.updates) == 8


def test_a_plan_file_will_do(tmp_path: Path) -> None:
    path, net = tmp_path / "autofit.yaml", Net()
    fit().save(path)
    trainer(ApplyPlan(path)).fit(net, loader())
    assert_in_effect(net)


def test_another_precision_is_refused_with_both_values() -> None:
    with pytest.raises(UsageError, match=r"found a Trainer with precision='32-true'; the plan needs 'bf16-mixed'"):
        trainer(ApplyPlan(fit(precision="bf16"))).fit(Net(), loader())


def test_a_loader_that_ignores_the_attribute_is_refused_with_both_values() -> None:
    class Fixed(Loading):
        def train_dataloader(self) -> Any:
            return loader(16)

    with pytest.raises(UsageError, match=r"found a train loader with batch_size=16; the plan has micro_batch_size=4"):
        trainer(ApplyPlan(fit())).fit(Fixed())


def test_evaluation_alone_is_left_alone() -> None:
    class Validating(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.rows.append(len(batch[0]))

    net = Validating()
    trainer(ApplyPlan(fit(precision="bf16")), AutofitCallback()).validate(net, loader())
    assert set(net.rows) == {8}


@pytest.mark.parametrize("source", ["module", "data module", "loader"])
def test_a_training_tunes_itself_leaves_no_trace_and_trains_under_the_plan(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[str] = []

    def watched(model: Any, batches: Any, **arguments: Any) -> Fit:
        digests.append(digest_of(model, arguments["optimizer"], batches))  # the trainer included
        found = tune(model, batches, **arguments)
        digests.append(digest_of(model, arguments["optimizer"], batches))
        return found

    monkeypatch.setattr(integration, "tune", watched)
    net: Any = Loading() if source == "module" else Net()
    data: dict[str, Any] = {"train_dataloaders": loader()} if source == "loader" else {}
    data |= {"datamodule": Data()} if source == "data module" else {}
    callback = AutofitCallback(
        pinned={"micro_batch_size": 4}, study=tmp_path / "study.db", time_budget=20, progress=False
    )
    trainer(callback).fit(net, **data)
    before, after = digests
    assert after == before
    assert not {"log", "log_dict"} & vars(net).keys()
    assert_in_effect(net)
    assert callback.fit is not None
    assert callback.fit.plan.global_batch_size == 8
    assert callback.fit.proof.worst_steps >= 3
    assert "the 8 samples of an optimizer step are those of your loader" in callback.fit.caveats[-1]


@needs_bf16
def test_the_precision_of_the_trainer_is_that_of_the_plan(tmp_path: Path) -> None:
    net = Net()
    callback = AutofitCallback(
        pinned={"micro_batch_size": 4}, study=tmp_path / "study.db", time_budget=20, progress=False
    )
    trainer(callback, precision="bf16-mixed", gradient_clip_val=0.5).fit(net, loader())
    assert_in_effect(net, torch.bfloat16)
    assert callback.fit is not None
    assert callback.fit.plan.values["precision"] == "bf16"
    assert callback.fit.answer.environment.settings["max_grad_norm"] == "0.5"


def test_a_schedule_fits_a_global_batch_that_changed(tmp_path: Path) -> None:
    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            self.expected = self.trainer.estimated_stepping_batches
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=self.expected)]

    net = Scheduled()
    callback = AutofitCallback(global_batch_size=16, study=tmp_path / "study.db", time_budget=20, progress=False)
    trainer(callback, max_steps=-1, max_epochs=1).fit(net, loader())
    assert net.expected == len(net.updates) == 4
    assert callback.fit is not None
    assert not any("were kept" in caveat for caveat in callback.fit.caveats)


def test_a_trial_run_is_not_tuned() -> None:
    callback, net = AutofitCallback(), Net()
    with pytest.warns(UserWarning, match="fast_dev_run is on"):
        trainer(callback, fast_dev_run=True).fit(net, loader())
    assert callback.fit is None
    assert net.rows == [8]


def test_arguments_that_the_module_decides_are_refused() -> None:
    with pytest.raises(UsageError, match="found step_fn, optimizer among the arguments"):
        AutofitCallback(step_fn=print, optimizer=None)


def test_a_precision_that_changes_the_module_is_refused() -> None:
    with pytest.raises(UsageError, match=r"precision='64-true'; expected one of 32-true, bf16-mixed, 16-mixed"):
        trainer(AutofitCallback(), precision="64-true").fit(Net(), loader())


def test_a_missing_attribute_is_named_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="found no attribute 'samples'"):
        trainer(AutofitCallback(batch_arg="samples")).fit(Loading())


def test_errors_of_the_search_reach_the_user(tmp_path: Path) -> None:
    callback = AutofitCallback(pinned={"micro_batch_size": 5}, study=tmp_path / "study.db", progress=False)
    net = Net()
    with pytest.raises(SpaceError):
        trainer(callback).fit(net, loader())
    assert "log" not in vars(net)


def test_nothing_imports_lightning_before_it_is_used_and_its_absence_is_said() -> None:
    code = (
        "import sys, autofit.cli, autofit.api, autofit.integrations, autofit.integrations.accelerate\n"
        "assert not {'lightning', 'accelerate'} & set(sys.modules)\n"
        "sys.modules['lightning.pytorch'] = None\n"
        "import autofit.integrations.lightning\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: lightning.pytorch cannot be imported" in done.stderr
    assert "pip install '.[lightning]' in a checkout" in done.stderr


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
        _set_clipping(made, norm)
        assert made.gradient_clip_val == expected
    with pytest.raises(UsageError, match=r"gradient_clip_val=0, by norm; the plan clips gradients to the L2 norm 0\.5"):
        _set_clipping(trainer(gradient_clip_val=0), 0.5)


def test_a_precision_that_is_that_of_the_plan_is_no_reason_to_stop() -> None:
    _check_precision(trainer(precision="bf16-mixed"), "bf16-mixed")
    with pytest.raises(UsageError, match=r"precision='bf16-mixed'; the plan needs '32-true'"):
        _check_precision(trainer(precision="bf16-mixed"), "32-true")


def test_manual_optimization_as_with_several_optimizers_is_refused() -> None:
    net = Net()
    net.automatic_optimization = False
    with pytest.raises(UsageError, match="found Net with manual optimization"):
        _check_trainer(trainer(), net)


def test_several_processes_are_refused_with_both_values() -> None:
    found = SimpleNamespace(world_size=4, callbacks=[])
    with pytest.raises(UsageError, match="found a Trainer with 4 processes; expected 1"):
        _check_trainer(found, Net())


def test_accumulation_that_a_callback_schedules_is_refused() -> None:
    with pytest.raises(UsageError, match="found the callback GradientAccumulationScheduler"):
        _check_trainer(trainer(GradientAccumulationScheduler({0: 2})), Net())


def test_a_usual_training_is_not_refused() -> None:
    _check_trainer(trainer(), Net())
    _check_measurable(trainer(), Net())


@pytest.mark.parametrize("hook", ["backward", "optimizer_step", "optimizer_zero_grad"])
def test_a_module_with_another_step_is_refused_by_name(hook: str) -> None:
    kind = type("Special", (Net,), {hook: lambda self, *args: None})
    with pytest.raises(UsageError, match=rf"found Special\.{hook}, which replaces a part"):
        _check_measurable(trainer(), kind())


def test_several_optimizers_are_refused() -> None:
    made, net = trainer(), Net()
    made.strategy.optimizers = [torch.optim.SGD(net.parameters()), torch.optim.SGD(net.parameters())]
    with pytest.raises(UsageError, match=r"found 2 optimizers in Net\.configure_optimizers"):
        _check_measurable(made, net)


@pytest.mark.parametrize("make", [dict, list, CombinedLoader])
def test_several_loaders_are_refused(make: Any) -> None:
    loaders = {"one": loader(), "other": loader()}
    given = make(loaders.values()) if make is list else make(loaders)
    with pytest.raises(UsageError, match=f"found several train loaders \\({make.__name__}\\)"):
        _train_loader(with_loaders(given))


def test_a_list_of_batches_is_one_loader() -> None:
    batches = list(loader())
    assert _train_loader(with_loaders(batches)) is batches


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
    assert _batch_size_of(given()) == size
    _check_loader(given(), 4)


def test_another_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="found a train loader with batch_size=2; the plan has micro_batch_size=4"):
        _check_loader(loader(2), 4)


def test_a_loader_is_rebuilt_with_its_sampler_and_keeps_what_it_is() -> None:
    given = DataLoader(samples(), batch_size=8, sampler=RandomSampler(samples()), drop_last=True)
    made, fit = with_loaders(given), Fit(answer(OWN.replace(micro_batch_size=4, accumulation_steps=2)))
    net, before = Net(), torch.random.get_rng_state()
    _set_batch(made, net, fit, "batch_size", None)
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
    loss = _step_of(made, net)(net, next(iter(loader())))
    torch.testing.assert_close(loss, net.line.bias.sum() * 8)


def test_a_copy_of_the_module_asks_the_same_trainer() -> None:
    made, net, copied = trainer(), Net(), Net()
    made.strategy.connect(net)
    net.trainer = made
    assert copied._trainer is None
    with _without_logging(copied):
        _step_of(made, net)(copied, next(iter(loader())))
    assert copied.trainer is made


def test_a_step_without_a_loss_is_refused() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    made, net = trainer(), Skipping()
    made.strategy.connect(net)
    with pytest.raises(WorkloadError, match="training_step returned NoneType; expected a loss"):
        _step_of(made, net)(net, next(iter(loader())))


def test_logging_is_off_inside_and_as_before_outside() -> None:
    class Outer(Net):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.other = Net(), nn.Linear(1, 1)

    net, calls = Outer(), []
    net.inner.log = lambda *args: calls.append(args)  # the user's
    with _without_logging(net):
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
    _set_batch(made, net, Fit(answer(OWN.replace(micro_batch_size=4))), "batch_size", None)
    assert data.batch_size == 4
