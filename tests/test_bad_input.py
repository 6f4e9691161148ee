"""Bad input: one clear message, the right error, and nothing of the user's changed."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import autofit
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    DeviceMissing,
    NonFiniteLoss,
    NothingFits,
    PlanFileError,
    SpaceError,
    StorageError,
    StudyError,
    UsageError,
    UserCodeError,
    WorkloadError,
)
from autofit.core.trial import Purpose
from autofit.guard import Guard
from autofit.probing.local_bench import LocalBench
from autofit.search.request import Event
from autofit.study import Study
from tests.digests import digest_of
from tests.fakes import FakeTime
from tests.probing import targets

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "device": "cpu", "memory_budget": "256MiB", "study": ":memory:", "progress": False, "strategies": ("batching",),
}  # fmt: skip


def tune(model: nn.Module, loader: Any, **changes: Any) -> autofit.Fit:
    return autofit.tune(model, loader, **QUICK | changes)


def refused(error: type[AutofitError], model: nn.Module, loader: Any, **changes: Any) -> str:
    """Returns the message of the refusal, after checking that it is `error` itself and that nothing has changed."""
    optimizer = changes.get("optimizer")
    before = digest_of(model, optimizer, loader)
    with pytest.raises(AutofitError) as raised:
        tune(model, loader, **changes)
    assert digest_of(model, optimizer, loader) == before
    assert raised.type is error, raised.value
    return str(raised.value)


def rows(samples: int = 64, columns: int = 8) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, columns, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 4, (samples,), generator=generator))


EMPTY = DataLoader(TensorDataset(torch.randn(0, 8), torch.zeros(0, dtype=torch.long)), batch_size=8)
DROPPED = DataLoader(rows(5), batch_size=8, drop_last=True)
LOADERS = [
    (EMPTY, "empty|no samples|no batch"),
    ([], "empty|no samples|no batch"),
    (DROPPED, "drop_last|no batch|empty"),
    (rows(), "data set"),
    (torch.randn(8, 8), "Tensor"),
    ({"x": torch.randn(8, 8)}, "dict"),
    (7, "int"),
    (None, "NoneType"),
    (["text", "more"], "str|tensor"),
    (iter([(torch.randn(8, 8), torch.zeros(8).long())]), "only once"),
    ((batch for batch in [(torch.randn(8, 8), torch.zeros(8).long())]), "only once"),
]


@pytest.mark.parametrize(("loader", "said"), LOADERS, ids=[f"{at}-{said}" for at, (_, said) in enumerate(LOADERS)])
@pytest.mark.fault("F31")
def test_a_loader_that_gives_no_batches_is_refused(loader: Any, said: str) -> None:
    message = refused(WorkloadError, targets.mlp(), loader)
    assert any(part in message for part in said.split("|")), message
    assert "expected" in message


@pytest.mark.fault("F29")
def test_a_one_shot_iterator_is_not_consumed() -> None:
    batches = iter([(torch.randn(8, 8), torch.zeros(8).long())] * 3)
    refused(WorkloadError, targets.mlp(), batches)
    assert len(list(batches)) == 3


def test_model_and_loader_in_the_wrong_order_are_named() -> None:
    with pytest.raises(WorkloadError, match="model first"):
        autofit.tune(targets.vectors(), targets.mlp(), **QUICK)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(WorkloadError, match="model first"):
        autofit.tune(targets.vectors(), targets.mlp())  # type: ignore[arg-type]  # that is the mistake


class Failing(nn.Module):
    """Fails from its `after`-th call on, whatever is put back in between."""

    def __init__(self, after: int) -> None:
        super().__init__()
        numbers = itertools.count()
        self.layers, self.after = targets.mlp(), after
        self.number: Callable[[], int] = lambda: next(numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.number() >= self.after:
            raise ValueError("expected nine columns")
        output: torch.Tensor = self.layers(x)
        return output


@pytest.mark.parametrize("after", [0, 10])
@pytest.mark.fault("F06")
def test_a_model_that_fails_at_every_size_shows_its_own_error(after: int) -> None:
    model = Failing(after)
    with pytest.raises(UserCodeError) as raised:
        tune(model, targets.vectors(), loss_fn=F.cross_entropy)
    assert "ValueError: expected nine columns" in str(raised.value)
    assert "in forward" in raised.value.traceback_text
    assert Path(__file__).name in raised.value.traceback_text
    assert "memory" not in str(raised.value)


def test_a_model_that_fails_after_the_baseline_ran_ends_the_search_with_the_baseline() -> None:
    fit = tune(Failing(20), targets.vectors(), loss_fn=F.cross_entropy)
    assert fit.plan == fit.baseline.plan
    assert "ValueError: expected nine columns" in fit.stopped


def test_a_data_set_that_fails_shows_its_own_error() -> None:
    class Broken(TensorDataset):
        def __getitem__(self, at: int) -> Any:
            raise KeyError("row is gone")

    message = refused(UserCodeError, targets.mlp(), DataLoader(Broken(*rows().tensors), batch_size=8))
    assert "row is gone" in message


def test_a_loss_that_cannot_be_inferred_says_what_to_pass() -> None:
    message = refused(WorkloadError, targets.mlp(), [torch.randn(8, 8)] * 4)
    assert "step_fn" in message


@pytest.mark.fault("F35")
def test_a_budget_below_the_model_itself_fits_nothing() -> None:
    message = refused(NothingFits, targets.mlp(), targets.vectors(), memory_budget="1000B")
    assert "1000 B" in message
    assert "stay between steps" in message
    assert "Give more memory" in message


@pytest.mark.fault("F35")
def test_a_budget_below_one_sample_fits_nothing() -> None:
    wide = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    data = TensorDataset(torch.randn(8, 64, 256, 8), torch.randint(0, 4, (8,)))

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).mean((1, 2)), batch[1])

    loader = DataLoader(data, batch_size=2)
    message = refused(NothingFits, wide, loader, step_fn=step_fn, memory_budget="100KiB", global_batch_size=2)
    assert "micro batch 1" in message
    assert "100 KiB" in message


@pytest.mark.parametrize("budget", ["much", "9999TiB", "-1GiB", 0, -5, "0.0GiB", 1.5, [1]], ids=repr)
def test_a_budget_that_cannot_be_read_or_had_is_refused(budget: Any) -> None:
    message = refused(UsageError, targets.mlp(), targets.vectors(), memory_budget=budget)
    assert "memory" in message


@pytest.mark.parametrize("changes", [
    {"time_budget": "soon"}, {"time_budget": 0}, {"time_budget": "-5s"}, {"numerics": "bold"}, {"objective": "epochs"},
    {"seed": "a"}, {"searcher": "quick"}, {"device": "tpu"}, {"strategies": [3]},
    {"planned_steps": 0}, {"planned_steps": 2.5}, {"planned_steps": True},
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_named(changes: dict[str, Any]) -> None:
    error: type[AutofitError] = DeviceMissing if "device" in changes else UsageError
    message = refused(error, targets.mlp(), targets.vectors(), **changes)
    (name, value), *_ = changes.items()
    assert name.split("_", maxsplit=1)[0] in message
    assert str(value).strip("[]") in message


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    message = refused(SpaceError, targets.mlp(), targets.vectors(), strategies=("batching", "magic"))
    assert "'magic'" in message
    assert "checkpointing" in message


@pytest.mark.parametrize(("size", "error"), [(0, WorkloadError), (-8, WorkloadError), (2.5, WorkloadError)])
def test_a_global_batch_that_is_no_size_is_refused(size: Any, error: type[AutofitError]) -> None:
    assert "global_batch_size" in refused(error, targets.mlp(), targets.vectors(), global_batch_size=size)


@pytest.mark.fault("F32")
def test_a_global_batch_larger_than_the_data_set_is_warned_of() -> None:
    fit = tune(targets.mlp(), targets.vectors(64), global_batch_size=128)
    assert fit.plan.global_batch_size == 128
    assert fit.plan.micro_batch_size <= 64
    with pytest.warns(UserWarning, match=r"64 samples.*global batch of 128"):
        fit.prepare(targets.mlp(), targets.vectors(64)).close()


def test_a_prime_global_batch_is_kept() -> None:
    fit = tune(targets.mlp(), targets.vectors(), global_batch_size=13)
    assert fit.plan.global_batch_size == 13
    assert {fit.baseline.plan.micro_batch_size} == {1}


def test_a_global_batch_that_the_batches_cannot_make_up_is_refused() -> None:
    weights = torch.ones(4)
    batches = [(torch.randn(8, 8), torch.zeros(8).long(), weights)]

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], batch[2])

    message = refused(SpaceError, targets.mlp(), batches, step_fn=step_fn, global_batch_size=12)
    assert "neither cut nor joined" in message


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        data = rows()
        yield from (data[at] for at in range(len(data)))


def test_a_stream_without_length_works_and_is_noted() -> None:
    loader = DataLoader(Stream(), batch_size=8)
    fit = tune(targets.mlp(), loader, global_batch_size=16)
    assert fit.plan.global_batch_size == 16
    assert any("read from a second iterator" in caveat for caveat in fit.caveats)


def test_a_model_on_another_device_is_said_with_the_cure() -> None:
    model = nn.Linear(8, 4, device="meta")
    message = refused(WorkloadError, model, targets.vectors())
    assert "meta" in message
    assert "Move it first" in message


def test_a_frozen_model_is_said_with_the_cure() -> None:
    message = refused(WorkloadError, targets.mlp().requires_grad_(False), targets.vectors())
    assert "requires_grad" in message
    assert 'mode="inference"' in message


def test_an_optimizer_over_another_model_is_said() -> None:
    other = torch.optim.SGD(targets.mlp().parameters(), lr=0.1)
    assert "optimizer" in refused(WorkloadError, targets.mlp(), targets.vectors(), optimizer=other)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.fault("F44")
def test_a_loss_that_is_not_finite_is_the_users_to_see(value: float) -> None:
    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0]).sum() * value
        return loss

    message = refused(NonFiniteLoss, targets.mlp(), targets.vectors(), step_fn=step_fn)
    assert "not finite" in message
    assert "the baseline (" in message
    assert NonFiniteLoss.exit_code == 5


def test_time_that_is_too_short_for_one_plan_is_said() -> None:
    message = refused(BudgetSpent, targets.mlp(), targets.vectors(), time_budget="1ms")
    assert "time budget of 1 ms" in message


def test_a_directory_as_study_is_refused(tmp_path: Path) -> None:
    assert "a directory" in refused(StudyError, targets.mlp(), targets.vectors(), study=tmp_path)


def test_a_study_in_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused(StorageError, targets.mlp(), targets.vectors(), study=tmp_path / "file" / "study.db")
    assert str(tmp_path / "file") in message
    (tmp_path / "notes.txt").write_text("my notes, longer than a header")
    message = refused(StudyError, targets.mlp(), targets.vectors(), study=tmp_path / "notes.txt")
    assert "found a file of another kind" in message
    assert (tmp_path / "notes.txt").read_text() == "my notes, longer than a header"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "Check the path"),
        ("schema: autofit.plan/9\n", "newer autofit"),
        ("schema: autofit.plan/1\nplan: {}\n", "Create the file again"),
        ("plan: [", "not readable as YAML"),
        ("", "expected a mapping"),
        ("weights: 1", "found no `schema`"),
    ],
)
def test_a_plan_file_that_cannot_be_used_is_refused(content: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlanFileError) as raised:
        autofit.load(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


class CtrlC:
    """Raises KeyboardInterrupt in the `at`-th call of a method from `arm` on, before or after it has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, at: int, after: bool = False) -> None:
        self.at, self.calls, self.after = at, 0, after
        self.original: Callable[..., Any] = getattr(kind, name)
        self.arm: Callable[[], None] = lambda: monkeypatch.setattr(kind, name, self.method())

    def method(self) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            stop = self.calls == self.at
            if stop and not self.after:
                raise KeyboardInterrupt
            result = self.original(*arguments, **named)
            if stop:
                raise KeyboardInterrupt
            return result

        return called


def interrupted(study: Path, arm: Callable[[], None], model: nn.Module | None = None) -> int:
    """Tunes until the interrupt, checks that there is no trace, and returns how many plans the next call knows."""
    model, loader = model or targets.mlp(), targets.vectors()
    optimizer = torch.optim.AdamW(model.parameters())
    F.cross_entropy(model(torch.randn(8, 8)), torch.zeros(8).long()).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    optimizer.step()
    weight = model.get_parameter("0.weight")
    before, gradient = digest_of(model, optimizer, loader), weight.grad
    arguments = {"optimizer": optimizer, "global_batch_size": 16, "study": study}
    arm()
    with pytest.raises(KeyboardInterrupt):
        tune(model, loader, **arguments)
    assert digest_of(model, optimizer, loader) == before
    assert weight.grad is gradient
    events: list[Event] = []
    fit = tune(model, loader, progress=events.append, **arguments)
    assert fit.proof.worst_steps >= 3
    assert digest_of(model, optimizer, loader) == before
    known = [int(e.text.split()[0]) for e in events if "known from earlier runs" in e.text]
    return known[0] if known else 0


@pytest.mark.parametrize("at", [1, 3, 9])
def test_ctrl_c_while_opening_leaves_no_trace(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctrl_c = CtrlC(monkeypatch, nn.LayerNorm, "forward", at)
    assert interrupted(tmp_path / "study.db", ctrl_c.arm) == 0
    assert ctrl_c.calls > at


@pytest.mark.fault("F56")
def test_ctrl_c_in_a_probe_keeps_the_finished_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, runs = LocalBench.evaluate, list[Purpose]()

    def stopping(bench: LocalBench, plan: Any, purpose: Purpose, *terms: Any) -> Any:
        runs.append(purpose)
        if len(runs) == 2:
            CtrlC(monkeypatch, torch.optim.AdamW, "step", 2).arm()  # in the middle of the run
        return evaluate(bench, plan, purpose, *terms)

    assert interrupted(tmp_path / "study.db", lambda: monkeypatch.setattr(LocalBench, "evaluate", stopping)) == 1


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_in_race_or_proof_keeps_all_trials(
    purpose: Purpose, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_clock: FakeTime
) -> None:
    model = targets.mlp()
    # The larger the micro batch the faster: another plan than the user's own is the best, so that there is a race.
    model.register_forward_pre_hook(lambda *_: step_clock.advance(0.01))
    evaluate, probes, stopped = LocalBench.evaluate, list[str](), list[Purpose]()

    def stopping(bench: LocalBench, plan: Any, why: Purpose, *terms: Any) -> Any:
        stop = why is purpose and not stopped
        if stop and not after:
            stopped.append(why)
            raise KeyboardInterrupt
        outcome = evaluate(bench, plan, why, *terms)
        if stop:
            stopped.append(why)
            raise KeyboardInterrupt
        if why is Purpose.PROBE and not stopped:
            probes.append(plan.key)
        return outcome

    known = interrupted(tmp_path / "study.db", lambda: monkeypatch.setattr(LocalBench, "evaluate", stopping), model)
    assert known == len(probes) > 0
    assert stopped == [purpose]


@pytest.mark.parametrize("name", ["begin", "finish"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.fault("F56")
def test_ctrl_c_while_a_trial_is_written_leaves_a_study_that_can_be_used(
    name: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctrl_c = CtrlC(monkeypatch, Study, name, 2, after)
    assert interrupted(tmp_path / "study.db", ctrl_c.arm) >= 1


def test_ctrl_c_while_the_state_is_put_back_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctrl_c = CtrlC(monkeypatch, Guard, "restore", 3)
    interrupted(tmp_path / "study.db", ctrl_c.arm)
    assert ctrl_c.calls > 3
