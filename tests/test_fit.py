"""A Fit trains as it says: the same numbers as a loop written by hand, from memory or from a plan file."""

import copy
import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit.core.errors import PlanFileError, UsageError, WorkloadError
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.study import splits
from autofit.workloads.step import StepBatch
from autofit.workloads.workload import Terms
from tests.probing import targets
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import text_lengths

MICRO, STEPS = 4, 4


@pytest.fixture(scope="module")
def tuned() -> Fit:
    return autofit.tune(
        targets.mlp(),
        targets.vectors(),
        loss_fn=F.cross_entropy,
        global_batch_size=MICRO * STEPS,
        memory_budget="64MiB",
        strategies=("batching", "optimizer_implementation"),
        device="cpu",
        study=":memory:",
        progress=False,
    )


def with_plan(fit: Fit, terms: Terms | None = None, settings: dict[str, str] | None = None, **values: Any) -> Fit:
    """Returns `fit` with another plan, as if that had won."""
    record = fit.answer
    environment = record.environment.model_copy(
        update={"settings": {**record.environment.settings, **(settings or {})}}
    )
    changes = {"plan": Plan(values=values), "environment": environment}
    return Fit(record.model_copy(update=changes), fit.terms if terms is None else terms)


@pytest.fixture
def fit(tuned: Fit) -> Fit:
    """A plan of 4 x 4 with a fused optimizer: all that a loop written by hand can do as well."""
    return with_plan(tuned, micro_batch_size=MICRO, accumulation_steps=STEPS, optimizer_implementation="fused")


def seeded(batch_size: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(4)
    return DataLoader(targets.vectors().dataset, batch_size, shuffle=True, generator=generator)


def by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, norm: float | None = None
) -> list[float]:
    losses: list[float] = []
    total = 0.0
    for at, (inputs, labels) in enumerate(seeded(MICRO), start=1):
        loss = F.cross_entropy(model(inputs), labels) / STEPS
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        total += loss.item()
        if at % STEPS == 0:
            if norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            losses.append(total)
            total = 0.0
    return losses


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("norm", [None, 0.05])
def test_it_trains_exactly_as_a_loop_written_by_hand(fit: Fit, norm: float | None) -> None:
    expected, model = targets.mlp(), targets.mlp()
    reference = torch.optim.AdamW(expected.parameters(), lr=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(reference, 0.5)
    losses = by_hand(expected, reference, schedule, norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = fit.prepare(model, seeded(8), optimizer, scheduler=scheduler, max_grad_norm=norm)
    assert len(step.loader) == 4
    assert [step(batch).item() for batch in step.loader] == pytest.approx(losses, rel=1e-6)
    assert step.optimizer is optimizer
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**4)
    assert equal(model, expected)
    assert not equal(model, targets.mlp())
    step.close()


def test_a_scheduler_that_takes_a_metric_is_refused(fit: Fit) -> None:
    model = targets.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(WorkloadError, match="a ReduceLROnPlateau, whose step"):
        fit.prepare(model, seeded(8), optimizer, scheduler=scheduler)


@pytest.mark.filterwarnings("ignore:the plan was measured with")
def test_the_clipping_that_was_tuned_with_is_kept_unless_another_is_given(tuned: Fit, tmp_path: Path) -> None:
    batch: dict[str, Any] = {"micro_batch_size": MICRO, "accumulation_steps": STEPS}
    fit = with_plan(tuned, settings={"max_grad_norm": "0.05"}, **batch)
    fit.save(tmp_path / "plan.yaml")
    loaded = autofit.load(tmp_path / "plan.yaml")
    for chosen, norm, given in ((fit, 0.05, None), (loaded, 0.05, None), (fit, 0.01, 0.01)):
        expected, model = targets.mlp(), targets.mlp()
        by_hand(expected, torch.optim.SGD(expected.parameters(), lr=0.5), norm=norm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with chosen.prepare(model, seeded(8), optimizer, loss_fn=F.cross_entropy, max_grad_norm=given) as step:
            for part in step.loader:
                step(part)
        assert equal(model, expected)
    with pytest.raises(WorkloadError, match="max_grad_norm is 0"):
        fit.prepare(targets.mlp(), seeded(8), max_grad_norm=0)
    with pytest.raises(PlanFileError, match=r"max_grad_norm: 'much'.*expected a number"):
        with_plan(tuned, settings={"max_grad_norm": "much"}, **batch).prepare(targets.mlp(), seeded(8))


@pytest.mark.filterwarnings("ignore:the plan was measured with")
def test_a_scaler_of_the_users_is_used(fit: Fit) -> None:
    model, expected = targets.mlp(), targets.mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    with fit.prepare(model, seeded(8), lambda params: torch.optim.SGD(params, lr=0.1), scaler=scaler) as step:
        for batch in step.loader:
            step(batch)
    assert scaler.get_scale() == 8.0 * 2**4
    by_hand(expected, torch.optim.SGD(expected.parameters(), lr=0.1))
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_closing_takes_the_plan_off_the_modules(tuned: Fit) -> None:
    model = targets.Transformer()
    fit = autofit.tune(
        model,
        targets.sentences((6,)),
        step_fn=targets.sample_mean,
        global_batch_size=8,
        memory_budget="64MiB",
        strategies=("batching", "checkpointing"),
        device="cpu",
        study=":memory:",
        progress=False,
    )
    changed = with_plan(fit, micro_batch_size=4, accumulation_steps=2, checkpointed_blocks=2)
    optimizer = torch.optim.AdamW(model.parameters())
    before = looks(model), {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    step = changed.prepare(model, targets.sentences((6,)), optimizer)
    assert looks(model) != before[0]
    step(next(iter(step.loader)))
    step.close()
    assert (looks(model), {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}) == before


def looks(model: nn.Module) -> list[Any]:
    """What a plan changes of a module beside its weights."""
    return [
        (name, type(module), vars(module).get("forward"), list(module._forward_hooks), module.training)
        for name, module in model.named_modules()
    ]


def test_a_saved_plan_gives_the_same_step(fit: Fit, tmp_path: Path) -> None:
    fit.save(tmp_path / "plan.yaml")
    loaded = autofit.load(str(tmp_path / "plan.yaml"))
    assert loaded.answer == fit.answer
    models = targets.mlp(), targets.mlp()
    for one, model in zip((fit, loaded), models, strict=True):
        with one.prepare(model, seeded(8), loss_fn=F.cross_entropy) as step:
            assert step.plan == fit.plan
            assert step.optimizer is not None
            assert step.optimizer.param_groups[0]["fused"] is True
            for batch in step.loader:
                step(batch)
    assert equal(*models)


def test_a_plan_of_another_model_is_refused(fit: Fit) -> None:
    model = targets.mlp(width=24)
    with pytest.raises(PlanFileError, match=r"a different structure.*Tune this model"):
        fit.prepare(model, seeded(8))
    frozen = targets.mlp()
    frozen[0].requires_grad_(False)
    with pytest.raises(PlanFileError, match="a different structure"):
        fit.prepare(frozen, seeded(8))


def test_another_device_is_warned_of(fit: Fit) -> None:
    record = fit.answer
    environment = record.environment.model_copy(update={"device_name": "Big Chip 9"})
    other = Fit(record.model_copy(update={"environment": environment}), fit.terms)
    with pytest.warns(UserWarning, match=r"proven on Big Chip 9 .*Tune again on this device"):
        other.prepare(targets.mlp(), seeded(8)).close()


def test_the_same_device_is_not_warned_of(fit: Fit, recwarn: pytest.WarningsRecorder) -> None:
    fit.prepare(targets.mlp(), seeded(8)).close()
    assert [str(warning.message) for warning in recwarn] == []


def test_an_inferred_loss_in_place_of_the_tuned_one_is_warned_of(fit: Fit, tmp_path: Path) -> None:
    fit.save(tmp_path / "plan.yaml")
    loaded = autofit.load(tmp_path / "plan.yaml")  # its loss_fn is code, and not in the file
    with pytest.warns(UserWarning, match=r"the loss was inferred here .*loss_fn="):
        loaded.prepare(targets.mlp(), seeded(8)).close()


def test_a_loss_that_is_given_replaces_the_tuned_one(fit: Fit) -> None:
    batch = next(iter(seeded(fit.plan.micro_batch_size)))
    model = targets.mlp()
    expected = 3 * F.cross_entropy(model(batch[0]), batch[1]).item()
    step_fn = lambda model, batch: 3 * F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731  # as users write it
    with fit.prepare(copy.deepcopy(model), seeded(8), step_fn=step_fn) as step:
        assert step(StepBatch.of([batch])).item() == pytest.approx(expected)
    with pytest.raises(WorkloadError, match="both loss_fn and step_fn"):
        fit.prepare(model, seeded(8), loss_fn=F.cross_entropy, step_fn=step_fn)


def test_gradients_from_before_do_not_enter_the_first_step(fit: Fit) -> None:
    model, other = targets.mlp(), targets.mlp()
    other.load_state_dict(model.state_dict())
    model(torch.randn(4, 8)).sum().backward()
    for one in (model, other):
        with fit.prepare(one, seeded(8), loss_fn=F.cross_entropy) as step:
            step(next(iter(step.loader)))
    assert equal(model, other)


def test_the_optimizer_that_was_tuned_with_is_the_default(tuned: Fit) -> None:
    terms = Terms(loss_fn=F.cross_entropy, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    chosen = with_plan(tuned, terms, {"optimizer": "SGD"}, micro_batch_size=MICRO, accumulation_steps=STEPS)
    with chosen.prepare(targets.mlp(), seeded(8)) as step:
        assert isinstance(step.optimizer, torch.optim.SGD)


def test_another_optimizer_than_the_tuned_one_is_warned_of(fit: Fit) -> None:
    with pytest.warns(UserWarning, match="measured with AdamW, but this step uses SGD"):
        fit.prepare(targets.mlp(), seeded(8), lambda params: torch.optim.SGD(params, lr=0.1)).close()


@pytest.mark.filterwarnings("ignore:one pass over this loader")
def test_a_loader_that_cannot_be_rebuilt_leaves_the_model_alone(fit: Fit) -> None:
    model = targets.mlp()
    before = looks(model)
    short = DataLoader(torch.utils.data.Subset(targets.vectors().dataset, [0, 1]), batch_size=2, drop_last=True)
    with pytest.raises(WorkloadError):
        fit.prepare(model, short, loss_fn=F.cross_entropy)
    assert looks(model) == before


def test_preparing_changes_neither_weights_nor_random_numbers(fit: Fit) -> None:
    model = nn.Sequential(*targets.mlp(), nn.Identity())[:-1]
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fit.prepare(model, seeded(8)).close()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_export_is_python_that_names_the_plan(fit: Fit) -> None:
    export = fit.export("python")
    compile(export.text, export.filename, "exec")
    assert export.filename.endswith(".py")
    assert "fused" in export.text
    with pytest.raises(UsageError, match=r"python"):
        fit.export("abacus")


def test_a_report_has_the_search_although_its_study_was_in_memory(tuned: Fit, tmp_path: Path) -> None:
    tuned.report(tmp_path / "autofit.json")
    found = json.loads((tmp_path / "autofit.json").read_text())
    assert found["title"] == type(targets.mlp()).__name__
    assert all("not traced" in part for part in found["missing"])
    assert found["command"].startswith("autofit.tune(model, loader, loss_fn=cross_entropy, global_batch_size=")
    assert "study=':memory:'" in found["command"]
    assert "baseline" in [part["role"] for part in found["memory"]]
    assert any(gate["name"] == "accumulation" for gate in found["gates"])
    assert sum(row["is_baseline"] for row in found["rows"]) == 1


def test_a_report_of_a_loaded_plan_says_what_is_missing(tuned: Fit, tmp_path: Path) -> None:
    tuned.save(tmp_path / "autofit.yaml")
    autofit.load(tmp_path / "autofit.yaml").report(tmp_path / "autofit.md")
    text = (tmp_path / "autofit.md").read_text()
    assert "it was kept in memory" in text
    assert "fit = autofit.load(" in text
    (tmp_path / "mine.md").write_text("mine")
    with pytest.raises(UsageError, match="is not an autofit report"):
        tuned.report(tmp_path / "mine.md")
    tuned.report(tmp_path / "mine.md", force=True)


def test_it_says_plan_gain_peak_and_why(tuned: Fit) -> None:
    text = str(tuned)
    record = tuned.answer
    assert f"micro batch {tuned.plan.micro_batch_size}" in text.splitlines()[0]
    flat = " ".join(text.split())  # lines are as wide as the terminal
    assert "the throughput of the baseline" in flat or "Keep the baseline" in flat
    assert "peak" in text
    assert f"Proven by {tuned.proof.worst_steps} whole steps" in flat
    assert record.environment.device_name in flat
    assert len(tuned.alternatives) >= 1
    assert all(other.note for other in tuned.alternatives)
    assert max(len(line) for line in text.splitlines() if record.study not in line) <= 100


def test_its_parts_are_those_of_the_record(tuned: Fit) -> None:
    record = tuned.answer
    assert (tuned.plan, tuned.proof, tuned.baseline) == (record.plan, record.proof, record.baseline)
    assert (tuned.gain, tuned.alternatives, tuned.caveats) == (record.gain, record.alternatives, record.caveats)


def test_a_notebook_shows_the_answer_and_a_plot(fit: Fit, tmp_path: Path) -> None:
    assert "Memory budget" in fit._repr_html_()
    shown = fit.plot("front")
    assert shown._repr_svg_().startswith("<svg")
    shown.save(tmp_path / "front.svg")
    assert (tmp_path / "front.svg").read_text(encoding="utf-8").startswith("<?xml")
    with pytest.raises(UsageError, match="no plot 'pie'"):
        fit.plot("pie")


@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_batches_of_similar_length_hold_each_sample_once_an_epoch(tuned: Fit, accumulation_steps: int) -> None:
    data = Texts(text_lengths(200))
    losses: list[Any] = []

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        losses.append(batch["label"].tolist())
        loss: torch.Tensor = model(torch.zeros(len(batch["label"]), 8)).sum()
        return loss

    grouped = with_plan(tuned, length_grouping=True, micro_batch_size=8, accumulation_steps=accumulation_steps)
    loader = DataLoader(data, 8, shuffle=True, collate_fn=pad, generator=torch.Generator().manual_seed(1))
    before, random = loader.generator.get_state(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data are not those of the tuning
        step = grouped.prepare(targets.mlp(), loader, step_fn=step_fn)
    assert torch.equal(loader.generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), random)
    epochs = []
    for _ in range(2):
        losses.clear()
        for batch in step.loader:
            step(batch)
        assert sorted(label for batch in losses for label in batch) == list(range(200))
        epochs.append([frozenset(batch) for batch in losses])
        spans = [max(data.lengths[at] for at in batch) - min(data.lengths[at] for at in batch) for batch in losses]
        assert sorted(spans)[len(spans) // 2] <= 12
    step.close()
    assert len({*epochs[0]} & {*epochs[1]}) <= 2


def test_what_a_console_shows_is_one_line_and_print_is_a_screen(fit: Fit) -> None:
    assert repr(fit).startswith("Fit(micro batch 4 x 4 accumulation steps = 16, optimizer_implementation=fused")
    with fit.prepare(targets.mlp(), targets.vectors(), torch.optim.AdamW) as step:
        assert repr(step) == f"TrainStep({fit.plan})"
    assert len(str(fit).splitlines()) < 40
    assert "How it was found" in fit.details()
    assert "How it was found" not in str(fit)


def test_a_step_that_runs_out_of_memory_is_split_if_asked(fit: Fit, tmp_path: Path) -> None:
    study = str(tmp_path / "study.journal")
    kept = Fit(fit.answer.model_copy(update={"study": study}), fit.terms)
    models = targets.mlp(), targets.mlp()
    for model, fails in zip(models, (False, True), strict=True):
        with kept.prepare(model, seeded(8), on_oom="split") as step:
            failed: list[int] = []

            def fail(module: Any, inputs: Any, fails: bool = fails, failed: list[int] = failed) -> None:
                if fails and len(inputs[0]) == MICRO:
                    failed.append(MICRO)
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

            model.register_forward_pre_hook(fail)
            batch = next(iter(step.loader))
            with (
                pytest.warns(UserWarning, match="micro batch of 4 samples ran out of memory")
                if fails
                else nullcontext()
            ):
                step(batch)
    assert len(failed) == 2, "then micro batches of this shape are cut at once"
    assert step.splits.micro_batches == STEPS
    for mine, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, expected)
    (left,) = splits.read(splits.places(study), kept.answer.environment)
    assert (left.plan, left.largest_samples) == (fit.plan, MICRO)


def test_splitting_is_off_unless_asked_and_its_name_is_checked(fit: Fit) -> None:
    step = fit.prepare(targets.mlp(), seeded(8))
    assert step.splitting is None
    step.close()
    with pytest.raises(UsageError, match="found on_oom='cut'; expected 'raise' or 'split'"):
        fit.prepare(targets.mlp(), seeded(8), on_oom="cut")  # type: ignore[arg-type]  # what is to be refused
