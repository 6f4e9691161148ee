"""`tune()` in process, on tiny workloads of every kind: proven, inside the budget, and without a trace."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.measurement import Memory
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.devices.base import Capability
from autofit.probing.local_bench import LocalBench
from autofit.search.request import Event
from autofit.tracing.isolation import IS_SUPPORTED
from autofit.workloads.workload import Workload
from tests.digests import digest_of
from tests.fakes import notes
from tests.probing import targets

QUICK: dict[str, Any] = {
    "device": "cpu", "memory_budget": "256MiB", "study": ":memory:", "progress": False, "strategies": ("batching",),
}  # fmt: skip


H200: dict[str, Any] = {"device": "H200", "numerics": "exact"}


def tune(model: nn.Module, loader: Any, **changes: Any) -> autofit.Fit:
    return autofit.tune(model, loader, **QUICK | changes)


@dataclass
class Case:
    model: nn.Module
    loader: Any
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pair:
    inputs: torch.Tensor
    labels: torch.Tensor


class Scoring(nn.Module):
    """Returns an object with a loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = targets.mlp()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.layers(inputs)
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits, labels))


def _stack(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(labels)


def _mapping(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    inputs, labels = _stack(samples)
    return {"inputs": inputs, "labels": labels}


def _pair(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> Pair:
    return Pair(*_stack(samples))


def _collated(collate: Callable[..., Any]) -> DataLoader[Any]:
    return DataLoader(targets.vectors().dataset, batch_size=8, shuffle=True, collate_fn=collate)


def vectors() -> Case:
    return Case(targets.mlp(), targets.vectors())


def mapping() -> Case:
    return Case(Scoring(), _collated(_mapping))


def dataclass_batches() -> Case:
    step_fn = lambda model, batch: F.cross_entropy(model(batch.inputs), batch.labels)  # noqa: E731  # as users write it
    return Case(targets.mlp(), _collated(_pair), {"step_fn": step_fn})


def ready_batches() -> Case:
    torch.manual_seed(0)
    batches = [(torch.randn(8, 8), torch.randint(0, 4, (8,))) for _ in range(6)]
    return Case(targets.mlp(), batches, {"loss_fn": F.cross_entropy})


def lengths() -> Case:
    return Case(targets.Transformer(), targets.sentences((3, 24)), {"step_fn": targets.sample_mean})


CASES = (vectors, mapping, dataclass_batches, ready_batches, lengths)


def upcoming(loader: Any) -> list[Any]:
    """The batches that the user's own loop would see next."""
    flat: list[Any] = []
    for batch in loader:
        parts = (
            batch.values() if isinstance(batch, dict) else vars(batch).values() if isinstance(batch, Pair) else batch
        )
        flat += [part.tolist() for part in parts]
    return flat


@pytest.mark.parametrize("make", CASES)
def test_the_plan_is_proven_and_nothing_is_changed(make: Callable[[], Case]) -> None:
    case = make()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.01)
    torch.manual_seed(3)
    before = digest_of(case.model, optimizer, case.loader)
    fit = tune(case.model, case.loader, optimizer=optimizer, global_batch_size=16, **case.arguments)
    assert digest_of(case.model, optimizer, case.loader) == before
    assert fit.proof.worst_steps >= 3
    assert len(fit.proof.step_times_s) >= 3
    assert fit.proof.samples_per_step == 16
    assert 0 < fit.proof.memory.judged_bytes <= 256 * 2**20
    assert fit.plan.global_batch_size == 16
    assert fit.baseline.plan == Plan(values={"micro_batch_size": 8, "accumulation_steps": 2})
    assert all(other.plan.global_batch_size == 16 for other in fit.alternatives)
    after = upcoming(case.loader)
    untouched = make().loader
    torch.manual_seed(3)
    assert after == upcoming(untouched)


def test_a_loader_in_the_middle_of_an_epoch_goes_on_as_if_nothing_had_been() -> None:
    generators = [torch.Generator().manual_seed(9) for _ in range(2)]
    loaders = [DataLoader(targets.vectors().dataset, 8, shuffle=True, generator=g) for g in generators]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    tune(targets.mlp(), loaders[0])
    rest, expected = ([batch[0].tolist() for batch in iterator] for iterator in iterators)
    assert rest == expected
    assert upcoming(loaders[0]) == upcoming(loaders[1])


def tried(model: nn.Module, loader: Any, **changes: Any) -> list[Plan]:
    events: list[Event] = []
    tune(model, loader, progress=events.append, **changes)
    return [event.trial.plan for event in events if event.trial is not None]


def test_strategies_restrict_the_search() -> None:
    batch = {"micro_batch_size", "accumulation_steps"}
    model = targets.Transformer()
    alone = tried(model, targets.sentences((6,)), step_fn=targets.sample_mean, strategies=("batching",))
    assert {name for plan in alone for name in plan.values} == batch
    both = tried(model, targets.sentences((6,)), step_fn=targets.sample_mean, strategies=["batching", "checkpointing"])
    assert batch < {name for plan in both for name in plan.values}
    one = tried(model, targets.sentences((6,)), step_fn=targets.sample_mean, strategies="batching")
    assert {name for plan in one for name in plan.values} == batch


def test_exact_numerics_leave_the_precision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = type(devices.choose("cpu"))
    monkeypatch.setattr(chip, "capabilities", lambda self: frozenset({Capability.BF16}))
    chosen = {"strategies": ("batching", "precision"), "global_batch_size": 8}
    mixed = tried(targets.mlp(), targets.vectors(), numerics="mixed", **chosen)
    assert "bf16" in {plan.values.get("precision") for plan in mixed}
    exact = tried(targets.mlp(), targets.vectors(), numerics="exact", **chosen)
    assert {plan.values.get("precision", "fp32") for plan in exact} == {"fp32"}


def test_inference_runs_the_forward_pass_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4)).requires_grad_(False)
    before = digest_of(model)
    fit = tune(model, targets.vectors(), mode="inference")
    assert digest_of(model) == before
    assert model.training
    assert set(fit.proof.phases_s) <= {"transfer", "forward"}
    assert fit.plan.accumulation_steps == 1
    with fit.prepare(model.eval(), targets.vectors()) as step:
        batch = next(iter(step.loader))
        output = step(batch)
        assert step.optimizer is None
        assert torch.equal(output, model(batch[0]))
        assert output.shape == (fit.plan.micro_batch_size, 4)


def test_an_optimizer_with_state_is_measured_and_put_back() -> None:
    model, loader = targets.mlp(), targets.vectors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, labels in loader:
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    before = digest_of(model, optimizer, loader)
    fit = tune(model, loader, optimizer=optimizer)
    assert digest_of(model, optimizer, loader) == before
    for mine, theirs in zip(optimizer.state_dict()["state"].values(), state["state"].values(), strict=True):
        assert torch.equal(mine["momentum_buffer"], theirs["momentum_buffer"])
    assert fit.answer.environment.settings["optimizer"] == "SGD"
    assert not any("no optimizer was given" in caveat for caveat in fit.caveats)


def test_an_optimizer_recipe_is_called_with_the_parameters() -> None:
    model = targets.mlp()
    seen = notes()

    def recipe(parameters: Any) -> torch.optim.Optimizer:
        held = list(parameters)
        seen.append(len(held))
        return torch.optim.Adagrad(held, lr=0.1)

    fit = tune(model, targets.vectors(), optimizer=recipe)
    assert set(seen) == {len(list(model.parameters()))}
    assert fit.answer.environment.settings["optimizer"] == "Adagrad"


def test_the_default_optimizer_is_named() -> None:
    fit = tune(targets.mlp(), targets.vectors())
    assert fit.answer.environment.settings["optimizer"] == "AdamW"
    assert any("no optimizer was given" in caveat and "AdamW" in caveat for caveat in fit.caveats)


def test_a_callable_gets_each_event_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []
    fit = tune(targets.mlp(), targets.vectors(), progress=events.append)
    assert {"stage", "trial", "proof"} <= {event.kind for event in events}
    measured = {e.trial.plan for e in events if e.trial is not None and e.trial.outcome.measured}
    assert {fit.plan, *(other.plan for other in fit.alternatives)} <= measured
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_stderr_in_the_objectives_unit(capsys: pytest.CaptureFixture[str]) -> None:
    loader = targets.sentences((3, 24))
    tune(targets.Transformer(), loader, step_fn=targets.sample_mean, objective="tokens", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "autofit: searching" in shown.err
    assert "tokens/s, peak" in shown.err
    assert "\r" not in shown.err  # no bar where there is no terminal


def test_a_planned_training_is_charged_for_its_start() -> None:
    fit = tune(targets.mlp(), targets.vectors(), planned_steps=1000)
    assert fit.answer.objective.planned_samples == 1000 * 8
    assert fit.proof.startup_s is not None
    assert "planned   8,000 samples" in fit.details()
    assert not any("first steps" in caveat for caveat in fit.caveats)


def test_accumulation_is_left_out_where_it_changes_the_result() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    loader = targets.vectors(batch_size=16)
    events: list[Event] = []
    fit = tune(model, loader, loss_fn=F.cross_entropy, global_batch_size=16, progress=events.append)
    assert fit.plan.accumulation_steps == 1
    answers = [e.text for e in events if e.kind == "answer"]
    assert answers
    assert not any("accumulation" in text for text in answers)


class Counted:
    """Counts the runs of a bench, by purpose, on a machine that is never disturbed: all steps take as long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[tuple[Plan, Purpose]] = []
        evaluate = LocalBench.evaluate

        def counted(bench: LocalBench, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
            self.runs.append((plan, purpose))
            outcome = evaluate(bench, plan, purpose, terms)
            if outcome.measurement is None:
                return outcome
            times_s = tuple(1e-3 for _ in outcome.measurement.step_times_s)
            return outcome.model_copy(
                update={"measurement": outcome.measurement.model_copy(update={"step_times_s": times_s})}
            )

        monkeypatch.setattr(LocalBench, "evaluate", counted)

    def take(self, purpose: Purpose) -> list[Plan]:
        found = [plan for plan, why in self.runs if why is purpose]
        self.runs = [run for run in self.runs if run[1] is not purpose]
        return found


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_call_is_taken_up_again(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    model, loader = targets.mlp(), targets.vectors()
    before = digest_of(model, None, loader)
    chosen = {"global_batch_size": 32, "study": tmp_path / "study.db"}
    seen: list[Event] = []

    def stop(event: Event) -> None:
        seen.append(event)
        if sum(e.kind == "trial" for e in seen) == 2:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        tune(model, loader, progress=stop, **chosen)
    assert digest_of(model, None, loader) == before
    first = counted.take(Purpose.PROBE)
    assert len(first) == 2
    told: list[str] = []
    fit = tune(model, loader, progress=lambda event: told.append(event.text), **chosen)
    again = set(first) & set(counted.take(Purpose.PROBE))
    assert len(again - {fit.baseline.plan}) <= 1, "the baseline and the best plan are measured anew"
    assert "2 plans are known from earlier runs; the best and the baseline are measured again" in told
    assert fit.plan in counted.take(Purpose.PROOF)
    assert fit.proof.worst_steps >= 3
    known = {fit.plan, fit.baseline.plan, *(other.plan for other in fit.alternatives)}
    assert set(first) <= known
    assert (tmp_path / "study.db").stat().st_mode & 0o777 == 0o600
    assert digest_of(model, None, loader) == before


def test_another_workload_shares_the_file_but_not_the_trials(tmp_path: Path) -> None:
    study = tmp_path / "study.db"
    tune(targets.mlp(), targets.vectors(), study=study)
    told: list[str] = []
    tune(targets.mlp(width=24), targets.vectors(), study=study, progress=lambda event: told.append(event.text))
    assert not any("earlier runs" in text for text in told)


def memory_of(model: nn.Module, loader: Any, global_batch_size: int, micro_batch_size: int) -> Memory:
    """Measures one plan that is known to the test, whichever plan a search would find the fastest."""
    workload = Workload(model, loader, global_batch_size=global_batch_size)
    plan = {"micro_batch_size": micro_batch_size, "accumulation_steps": global_batch_size // micro_batch_size}
    options = Options(memory_budget="256MiB", strategies=("batching",))
    with LocalBench(workload, devices.choose("cpu"), options) as bench:
        outcome = bench.evaluate(Plan(values=plan), Purpose.PROBE)
    assert outcome.measured, outcome.reason
    assert outcome.measurement is not None
    return outcome.measurement.memory


def test_a_plan_over_the_budget_is_not_recommended() -> None:
    model = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 4))
    events: list[Event] = []
    need = memory_of(model, targets.vectors(512, 64), global_batch_size=256, micro_batch_size=256)
    assert need.static_bytes is not None
    budget = need.static_bytes + (need.judged_bytes - need.static_bytes) // 3
    fit = tune(model, targets.vectors(512, 64), global_batch_size=256, memory_budget=budget, progress=events.append)
    assert fit.proof.memory.judged_bytes <= budget
    assert fit.plan.global_batch_size == 256
    assert fit.plan.micro_batch_size < 256
    outcomes = [e.trial.outcome for e in events if e.trial is not None]
    assert all(o.measurement is None or o.measurement.memory.judged_bytes <= budget for o in outcomes if o.measured)
    assert all(e.trial.plan.micro_batch_size < 256 for e in events if e.trial is not None)  # estimated, not tried


@pytest.mark.fault("F32")
def test_one_dataset_length_is_the_largest_batch() -> None:
    fit = tune(targets.mlp(), DataLoader(TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,))), batch_size=8))
    assert max(c.plan.micro_batch_size for c in (fit.baseline, *fit.alternatives)) <= 24
    assert fit.plan.micro_batch_size <= 24


def test_estimate_in_process_leaves_everything_as_it_was_and_prints() -> None:
    model, loader = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)), targets.vectors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, random = digest_of(model, optimizer, loader), torch.get_rng_state()
    found = autofit.estimate(model, loader, optimizer=optimizer, global_batch_size=16, memory_budget="64MiB")
    assert digest_of(model, optimizer, loader) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert optimizer.state == {}
    assert found.own.plan.global_batch_size == 16
    assert found.rows[0].largest is not None
    assert str(found).startswith("On ")


@pytest.mark.skipif(not IS_SUPPORTED, reason="forks, which is done on Linux only")
def test_estimate_of_a_model_for_a_card_that_is_not_here_leaves_no_stand_in_in_this_process() -> None:
    model, loader = targets.mlp(), targets.vectors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = digest_of(model, optimizer, loader)
    found = autofit.estimate(model, loader, optimizer=optimizer, device="h100-sxm5 80GB", numerics="exact")
    assert digest_of(model, optimizer, loader) == before
    assert optimizer.state == {}
    with pytest.raises(RuntimeError, match="standin"):
        torch.device("standin")
    assert found.environment.device_name == "NVIDIA H100 80GB HBM3"
    assert found.rows[0].largest is not None
    assert found.rows[0].largest.samples_per_s is not None
    assert 70 * 2**30 < found.budget.memory_bytes < 80 * 2**30
    assert any("512 MiB are assumed" in caveat and "autofit tune measures" in caveat for caveat in found.caveats)
    assert any("traced, not measured" in caveat for caveat in found.caveats)


@pytest.mark.parametrize(
    ("arguments", "changes", "says"),
    [
        ((targets.mlp(), targets.vectors()), {"device": "H100"}, "may be any of H100 "),
        ((targets.mlp(), targets.vectors()), {"device": "cuda"}, "expected the name of a card"),
        (("train.py:make", targets.vectors()), {"device": "H200"}, "found loader beside the factory"),
        (("train.py:make",), {}, "neither a device nor"),
        (("train.py:make",), {"device": "H9000"}, "unknown device"),
        ((3,), {}, "found an int"),
        ((targets.mlp(), targets.vectors()), {"numerics": "odd"}, "numerics is 'odd'"),
        ((targets.mlp(), targets.vectors()), {"ranks": 0}, "found ranks=0; expected a whole number"),
        ((targets.mlp(), targets.vectors()), {"ranks": True}, "found ranks=True; expected a whole number"),
        ((targets.mlp(), targets.vectors()), {"layout": "full"}, "found the layout 'full' for one rank"),
        (
            (targets.mlp(), targets.vectors()),
            {"ranks": 2, "layout": "half"},
            "one of replicated, optimizer, full",
        ),
    ],
)
def test_estimate_says_what_it_cannot_use(arguments: tuple[Any, ...], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(autofit.UsageError, match=says):
        autofit.estimate(*arguments, **changes)


@pytest.mark.slow
def test_estimate_of_a_factory_for_a_card_that_is_not_here() -> None:
    found = autofit.estimate(f"{targets.__file__}:make_transformer", **H200)
    assert found.environment.device_name == "NVIDIA H200"
    rows = {(row.knob, row.value): row for row in found.rows}
    plain, offloaded = found.rows[0].largest, rows["activation_offload", True].largest
    assert plain is not None
    assert offloaded is not None
    assert offloaded.peak.value_bytes < plain.peak.value_bytes <= found.budget.memory_bytes
    assert found.account.outside_bytes > 0
    made = targets.make_transformer()
    in_process = autofit.estimate(made.model, made.loader, loss_fn=made.loss_fn, step_fn=made.step_fn, **H200)
    assert (in_process.rows, in_process.breakdown) == (found.rows, found.breakdown)


class Peeking(nn.Module):
    """Looks at its data, which no trace has; three wide activations of a sample take 96 KiB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 2**13), nn.Tanh(), nn.Tanh(), nn.Linear(2**13, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x * (1.0 if x.detach().numpy().max() > -100 else 2.0))
        return output


@pytest.mark.usefixtures("whole_search")
def test_a_step_that_cannot_be_traced_is_searched_by_what_its_plans_took() -> None:
    model = Peeking()
    before = digest_of(model)
    events: list[Event] = []
    loader = targets.vectors(samples=1024)
    given = {"memory_budget": "24MiB", "max_global_batch_size": 512}
    fit = tune(model, loader, loss_fn=F.cross_entropy, progress=events.append, **given)
    assert digest_of(model) == before
    assert len([caveat for caveat in fit.caveats if "memory was not estimated before the first probe" in caveat]) == 1
    assert fit.proof.memory.judged_bytes <= 24 * 2**20
    assert fit.plan.micro_batch_size > 8
    failed = [event.trial for event in events if event.trial and event.trial.outcome.status.does_not_fit]
    assert len(failed) <= 1
