"""Comparing finders: what counts as a failure, what was changed, and the verdict. The other finders are not needed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofit.core.answer import Ratio
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.units import parse_bytes
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from scripts.bench.peers import compare, finders, finding, judging, models, state, tpe

REFUSED = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."
PRIMITIVE = "could not create a primitive"


class Limited(models.Problem):
    """A problem whose batches above `LIMIT` fail, after a step that was done when that is one more."""

    LIMIT, text = 5, REFUSED

    @contextmanager
    def limited(self, budget_bytes: int | None = None) -> Iterator[None]:
        yield

    def train(self, size: int) -> None:
        if size > self.LIMIT:
            raise RuntimeError(self.text)
        super().train(size)


@pytest.fixture
def problem() -> Limited:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters())
    return Limited(Workload(model, loader, optimizer=optimizer), source_of(loader), 0)


def find(problem: models.Problem) -> Plan:
    with models.on_step(problem.stepped):
        return finders.doubling()(problem, 0.0)


# What a finder did.


def test_a_finder_is_followed_to_its_failure(problem: Limited) -> None:
    found = find(problem)
    assert found == models.plan_of(4)
    assert (problem.failures, problem.steps) == (1, 2 * models.STEPS)
    assert problem.ran == {models.key(2), models.key(4)}


def test_doubling_ends_with_the_data(problem: Limited) -> None:
    problem.LIMIT = 1000  # this one's alone
    assert find(problem) == models.plan_of(64)
    assert problem.failures == 0


def test_a_failure_that_a_finder_cannot_see_is_said_in_its_words(problem: Limited) -> None:
    problem.text = PRIMITIVE
    with pytest.raises(RuntimeError, match=models.SEEN):
        problem.trial(lambda: problem.train(8), sees=lambda error: models.SEEN in str(error))
    assert (problem.failures, problem.translated) == (1, 1)


def test_a_failure_that_a_finder_sees_stays_as_it_is(problem: Limited) -> None:
    with pytest.raises(RuntimeError, match="64 bytes"):
        problem.trial(lambda: problem.train(8), sees=lambda error: models.SEEN in str(error))
    assert (problem.failures, problem.translated) == (1, 0)


def test_an_error_of_another_kind_is_no_out_of_memory(problem: Limited) -> None:
    problem.text = "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x1)"
    with pytest.raises(RuntimeError, match="shapes"):
        problem.trial(lambda: problem.train(8))
    assert problem.failures == 0


@pytest.mark.parametrize("error", [RuntimeError(REFUSED), RuntimeError(PRIMITIVE), MemoryError("std::bad_alloc")])
def test_refusals_of_memory_are_known(error: BaseException) -> None:
    assert models.no_memory(error)


def test_tensors_without_data_do_no_steps() -> None:
    count = []
    with models.on_step(lambda: count.append(1)):
        with FakeTensorMode():
            _step_once()
        assert not count
        _step_once()
    _step_once()
    assert len(count) == 1


def _step_once() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.SGD([weight], lr=0.1).step()


def test_each_kind_of_state_is_told_apart(problem: Limited) -> None:
    w = problem.workload

    def changed(change: Any) -> list[str]:
        before = state.state_of(w)
        change()
        after = state.state_of(w)
        return [name for name in before if before[name] != after[name]]

    assert changed(lambda: None) == []
    assert changed(lambda: torch.rand(1)) == ["generators"]
    assert changed(w.model.eval) == ["modes"]
    assert changed(lambda: w.model[1].running_mean.add_(1)) == ["buffers"]  # type: ignore[index]
    assert changed(lambda: w.model[0].weight.data.add_(1)) == ["weights"]  # type: ignore[index]
    assert {"weights", "optimizer"} <= set(changed(lambda: problem.train(2)))


def test_the_batch_is_free_and_the_memory_that_of_the_examples() -> None:
    assert models.tabular().global_batch_size is None
    assert models.gpt().global_batch_size is None
    assert models.budget_bytes("gpt") == parse_bytes("72MiB")


@pytest.mark.slow
def test_plans_are_tried_in_processes_of_their_own(problem: Limited) -> None:
    before = state.state_of(problem.workload)
    problem.budget_bytes = 2**26
    with models.on_step(problem.stepped):
        assert tpe._forked(problem, Plan(values={"micro_batch_size": 4, "accumulation_steps": 1})) > 0
    assert problem.steps == 2 + models.STEPS + tpe.TIMED
    assert state.state_of(problem.workload) == before


# What its finding is worth.


def row(value: float | None, failures: int = 1, low: float = 0.9, high: float = 1.1) -> dict[str, Any]:
    """A finder's row: `value` is autofit's throughput over its, None where its setting did not pass."""
    found: dict[str, Any] = {
        "plan": {"micro_batch_size": 4, "accumulation_steps": 1}, "failed": "", "translated": 0, "steps": 9,
        "out_of_memory": failures, "seconds": 1.0, "ran": True, "changed": [], "raced_samples_per_s": 10.0,
        "proof": {"ran": value is not None, "reason": "" if value is not None else "can't allocate memory"},
    }  # fmt: skip
    if value is not None:
        found["autofit_over_it"] = Ratio(value=value, low=low * value, high=high * value, pairs=12).model_dump()
    return found


def ours(failures: int = 0, proven: bool = True) -> dict[str, Any]:
    found = row(1.0 if proven else None, failures)
    found.pop("autofit_over_it", None)
    return found


def test_the_best_peer_is_the_fastest_that_was_proven() -> None:
    rows = {"doubling": row(1.5), "optuna tpe": row(1.1), "accelerate": row(None), finding.OURS: ours()}
    assert judging.verdict(rows) == {
        "best_peer": "optuna tpe",
        "best_batch_only": "doubling",
        "fastest": True,
        "careful": True,
    }


def test_a_plan_that_is_slower_beyond_noise_is_not_the_fastest() -> None:
    assert judging.verdict({"doubling": row(0.95), finding.OURS: ours()})["fastest"]
    assert not judging.verdict({"doubling": row(0.9, high=1.05), finding.OURS: ours()})["fastest"]
    assert not judging.verdict({"doubling": row(None), finding.OURS: ours(proven=False)})["fastest"]


def test_no_peer_may_be_more_careful() -> None:
    rows = {"doubling": row(1.5, failures=1), "accelerate": row(2.0, failures=0)}
    assert judging.verdict({**rows, finding.OURS: ours(failures=0)})["careful"]
    assert not judging.verdict({**rows, finding.OURS: ours(failures=1)})["careful"]


def case(model: str, **rows: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "finders": rows, **judging.verdict(rows)}


def test_the_summary_is_the_geometric_mean_over_the_best_peers() -> None:
    good = [case("gpt", doubling=row(1.0), autofit=ours()), case("unet", doubling=row(4.0), autofit=ours())]
    summary, figures, passed = compare.summed_up(good)
    assert passed
    assert figures["mean"] == pytest.approx(2.0)
    assert summary.startswith("peers: autofit 2.00x of the best peer in the geometric mean of 2 models")
    assert summary.endswith("slower on none; more out-of-memory errors on none: ok")


def test_one_miss_is_named_and_fails_the_whole() -> None:
    cases = [case("gpt", doubling=row(4.0), autofit=ours(2)), case("unet", doubling=row(2.0), autofit=ours())]
    summary, _, passed = compare.summed_up(cases)
    assert not passed
    assert summary.endswith("slower on none; more out-of-memory errors on gpt: MISSED")
    assert not compare.summed_up([case("gpt", doubling=row(1.2), autofit=ours())])[2]


def test_the_table_names_what_was_not_proven() -> None:
    text = compare.in_words(case("gpt", doubling=row(2.0), accelerate=row(None, 18), autofit=ours()))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "NOT PROVEN: can't allocate memory" in lines["accelerate"]
    assert "2.00x (1.80 to 2.20)" in lines["doubling"]
    assert "NOT PROVEN" not in lines["autofit"]


@pytest.mark.parametrize(
    ("status", "measured", "ran"),
    [
        (Status.MEASURED, True, True),
        (Status.OVER_BUDGET, True, True),  # the limit held
        (Status.OVER_BUDGET, False, False),
        (Status.OUT_OF_MEMORY, False, False),
    ],
)
def test_the_real_limit_decides_what_ran(status: Status, measured: bool, ran: bool) -> None:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    seen = Measurement(step_times_s=(0.1,), samples_per_step=8, memory=memory) if measured else None
    assert judging._proof(Outcome(status=status, reason="x", measurement=seen))["ran"] is ran


def test_missing_extras_are_named_with_what_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "KINDS", ("no_such_finder",))
    monkeypatch.setattr(sys, "argv", ["peers"])
    with pytest.raises(SystemExit) as ended:
        compare.main()
    assert ended.value.code == 2
    assert "no_such_finder is not installed; this benchmark needs: pip install" in capsys.readouterr().err


def test_an_unknown_model_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compare, "KINDS", ())
    monkeypatch.setattr(sys, "argv", ["peers", "--only", "gtp"])
    with pytest.raises(SystemExit) as ended:
        compare.main()
    assert ended.value.code == 2
    assert "peers: gtp is unknown; expected some of gpt, convnet" in capsys.readouterr().err
