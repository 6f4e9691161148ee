"""A search in this process: who is called, when and in which thread, and what the result carries."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import in_process, locks
from autofit.core.answer import Answer
from autofit.core.budget import Clock
from autofit.core.errors import UsageError, WorkloadError
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.request import Event
from tests.digests import digest_of
from tests.probing import targets
from tests.recorded import recorded_search


def test_listeners_are_called_in_the_callers_thread_and_the_result_is_the_answer() -> None:
    events: list[Event] = []
    threads = set[int]()

    def listen(event: Event) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    fit = autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, global_batch_size=16,
        memory_budget="256MiB", strategies=["batching"], listeners=[listen],
    )  # fmt: skip
    assert threads == {threading.get_ident()}
    assert (events[0].kind, events[-1].kind) == ("start", "result")
    assert "waiting" not in {event.kind for event in events}
    result = events[-1].result
    assert result is not None
    assert result.answer == fit.answer
    asked = events[0].asked
    assert asked is not None
    assert "listeners" not in asked.command
    assert asked.command.startswith("autofit.tune(model, loader, ")


def test_a_search_without_a_last_event_still_has_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded_search().answer
    assert found is not None
    monkeypatch.setattr(in_process, "search", lambda *_: found)
    fit = autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["batching"],
    )  # fmt: skip
    assert fit.plan == found.plan
    assert fit.result is None


def test_the_wait_for_the_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, waits = recorded_search().answer, list[float]()
    assert found is not None

    @contextmanager
    def held(*_: object) -> Iterator[None]:
        time.sleep(0.3)
        yield

    def search(bench: object, request: object, listeners: object, clock: Clock, *looks: object) -> Answer:
        waits.append(clock.waited_s)
        return found

    monkeypatch.setattr(locks, "held", held)
    monkeypatch.setattr(in_process, "search", search)
    autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["batching"],
    )  # fmt: skip
    assert len(waits) == 1
    assert 0.3 <= waits[0] < 3


def test_a_wait_for_another_tuner_is_reported_and_is_not_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    found, phases, events = recorded_search().answer, list[str](), list[Event]()
    assert found is not None

    class Watched(Watchdog):
        def beat(self, phase: str) -> None:
            phases.append(phase)
            super().beat(phase)

    @contextmanager
    def held(key: str, what: str, wait_s: float, say: Callable[[str], None]) -> Iterator[None]:
        say(f"waiting for {what}")
        yield

    monkeypatch.setattr(in_process, "Watchdog", Watched)
    monkeypatch.setattr(locks, "held", held)
    monkeypatch.setattr(in_process, "search", lambda *_: found)
    autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=events.append,
        memory_budget="256MiB", strategies=["batching"],
    )  # fmt: skip
    assert phases[0] == WAITING
    assert [event.text[:12] for event in events if event.kind == "busy"] == ["waiting for "]


def evaluated(**changes: Any) -> autofit.Fit:
    given: dict[str, Any] = {
        "eval_loader": targets.vectors(batch_size=4), "device": "cpu", "study": ":memory:", "progress": False,
        "memory_budget": "256MiB", "strategies": ["batching"],
    }  # fmt: skip
    return autofit.tune(targets.mlp(), targets.vectors(), **given | changes)


def test_one_call_finds_a_plan_for_training_and_one_for_evaluation_without_a_trace(tmp_path: Path) -> None:
    model, loader, eval_loader = targets.mlp(), targets.vectors(), targets.vectors(batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = digest_of(model, optimizer, loader, {"eval_loader": eval_loader})
    fit = autofit.tune(
        model, loader, optimizer=optimizer, eval_loader=eval_loader, device="cpu", study=":memory:", progress=False,
        memory_budget="256MiB", strategies=["batching"], global_batch_size=16,
    )  # fmt: skip
    assert digest_of(model, optimizer, loader, {"eval_loader": eval_loader}) == before
    assert fit.plan.global_batch_size == 16
    found = fit.evaluation
    assert found is not None
    assert found.baseline.plan.micro_batch_size == 4
    assert found.answer.environment.settings["mode"] == "inference"
    momentum_bytes = 4 * sum(p.numel() for p in model.parameters())
    assert found.answer.budget.memory_bytes == fit.answer.budget.memory_bytes - momentum_bytes
    fit.save(tmp_path / "plan.yaml")
    loaded = autofit.load(tmp_path / "plan.yaml")
    assert loaded.answer == fit.answer
    assert loaded.evaluation is not None
    with fit.prepare(model, loader, optimizer) as step:
        step(next(iter(step.loader)))
        weights = [p.detach().clone() for p in model.parameters()]
        with loaded.evaluation.prepare(model.eval(), eval_loader) as evaluate:
            outputs = [evaluate(batch) for batch in evaluate.loader]
        assert sum(len(each) for each in outputs) == len(eval_loader.dataset)  # type: ignore[arg-type]
        assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), weights, strict=True))


def test_a_technique_of_evaluation_is_undone_when_training_goes_on() -> None:
    """The layout of the weights is the evaluation's inside `with`, and the training's again after it."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(8 * 36, 4))
    loader = DataLoader(TensorDataset(torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))), batch_size=4)
    fit = autofit.tune(
        model, loader, eval_loader=loader, device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["memory_format"], seed=1,
    )  # fmt: skip
    assert fit.evaluation is not None
    plan = fit.evaluation.plan.replace(memory_format="channels_last")
    record = fit.evaluation.answer.model_copy(update={"plan": plan})
    weight, image = convolution.weight, next(iter(loader))[0]
    with fit.prepare(model, loader) as step:
        strides, expected = weight.stride(), model(image)
        with autofit.Fit(record).prepare(model, loader) as evaluate:
            assert weight.is_contiguous(memory_format=torch.channels_last)
            assert torch.allclose(evaluate(next(iter(evaluate.loader))), expected, atol=1e-6)
        assert weight.stride() == strides
        step(next(iter(step.loader)))


def test_evaluation_whose_data_fail_does_not_cost_the_answer_of_the_training() -> None:
    broken = DataLoader(targets.BrokenRows(torch.randn(16, 8)), batch_size=4)
    fit = evaluated(eval_loader=broken)
    assert fit.evaluation is None
    assert any(caveat.startswith("no plan for evaluation was found: ") for caveat in fit.caveats)


def test_an_eval_loader_that_cannot_be_used_is_refused_before_the_search() -> None:
    with pytest.raises(WorkloadError, match="eval_loader: found a data set"):
        evaluated(eval_loader=targets.vectors().dataset)
    with pytest.raises(UsageError, match='found eval_loader with mode="inference"'):
        evaluated(mode="inference")


def test_both_searches_end_within_the_time_budget() -> None:
    began = time.monotonic()
    fit = evaluated(time_budget=30)
    assert time.monotonic() - began < 38
    assert fit.answer.budget.time_s == 24
    assert fit.evaluation is not None
    assert (fit.evaluation.answer.budget.time_s or 0) > 6


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            ["held for 9 steps, in 2 s; live memory: 1.5 MiB", "held for 9 steps, in 2 s; live memory: 900 KiB"],
            "held for 9 steps, in 2 s; live memory: 1.5 MiB (rank 0, the most of 2)",
        ),
        (["held: 1 MiB", "live memory grows by 1 KiB"], "rank 1: live memory grows by 1 KiB"),
        (
            ["failed in step 2: [gloo] Connection closed", "failed in step 2: no more"],
            "rank 1: failed in step 2: no more",
        ),
        (["grows", "failed in step 3: no more"], "rank 1: failed in step 3: no more; rank 0: grows"),
        (["", "failed: [gloo] Connection closed"], ""),
        (["failed: [gloo] x", "failed: [gloo] y"], "the ranks no longer waited for each other: failed: [gloo] x"),
        (["grows"] * 5, "rank 0: grows; rank 1: grows; rank 2: grows; and on 2 more ranks"),
    ],
)
def test_what_ranks_say_of_a_long_proof_is_one_sentence(said: list[str], expected: str) -> None:
    assert in_process.together(said) == expected
