"""After a proof has passed, its gate is asked, everything is put back, and the loader is judged by the fastest run."""

from typing import Any

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.probing import passed_proof
from autofit.probing.passed_proof import PassedProof, note_rate

PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 1})


def measured(rate_per_s: float = 10.0) -> Outcome:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="allocated")
    measurement = Measurement(step_times_s=(1.0,), samples_per_step=int(rate_per_s), memory=memory)
    return Outcome(status=Status.MEASURED, measurement=measurement)


RATES: dict[str, float] = {}


class Gate:
    def __init__(self, answer: Outcome | BaseException) -> None:
        self.answer = answer

    def judged(self, outcome: Outcome, plan: Plan, baseline: Plan) -> Outcome:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Trials:
    """Notes what it is asked."""

    asked: list[tuple[int, float]]

    def __init__(self, *args: Any) -> None:
        pass

    def added(self, outcome: Outcome, size: int, rate_per_s: float, restore: Any) -> Outcome:
        self.asked.append((size, rate_per_s))
        return outcome


def passed(monkeypatch: pytest.MonkeyPatch, answer: Outcome | BaseException, done: list[str]) -> PassedProof:
    monkeypatch.setattr(Trials, "asked", [], raising=False)
    monkeypatch.setattr(passed_proof, "LoaderTrials", Trials)
    nothing: Any = None
    gate: Any = Gate(answer)
    return PassedProof(gate, nothing, nothing, nothing, lambda phase: None, lambda: done.append("put back"), RATES)


def test_the_loader_is_judged_by_the_fastest_run_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    slow, fast = measured(10.0), measured(20.0)
    after = passed(monkeypatch, slow, done)
    RATES.clear()
    for outcome in (fast, slow, Outcome(status=Status.CRASHED, reason="gone")):
        note_rate(RATES, PLAN, outcome)
    note_rate(RATES, Plan(), measured(99.0))
    assert after.judged(PLAN, slow, Plan()) == slow
    assert Trials.asked == [(4, 20.0)]
    assert done == ["put back"]


def test_everything_is_put_back_if_the_gate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    after = passed(monkeypatch, KeyboardInterrupt(), done)
    with pytest.raises(KeyboardInterrupt):
        after.judged(PLAN, measured(), Plan())
    assert done == ["put back"]
