"""The answer is examined once, after everything else, and only where that surely ends in time."""

import pytest

from autofit.core.budget import Budget, Clock
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, RunTerms
from autofit.search.ledger import EXAMINED_RATIO, EXAMINED_S, EXAMINED_STEPS, UNCOMPILED_RATIO, Ledger
from autofit.search.request import Request
from autofit.search.search import SearchInterrupted, run, search
from tests.fakes import briefing_of, opened, small_bench, tuning_of
from tests.search.listed import calm


def test_the_answer_is_examined_once_after_its_proof() -> None:
    bench, asked = calm(), list[tuple[Plan, float, int]]()

    def examine(plan: Plan, limit_s: float) -> str:
        asked.append((plan, limit_s, len(bench.runs)))
        return "doctor: found"

    tuning = tuning_of(bench, examine=examine)
    findings = run(tuning)
    assert asked == [(findings.plan, Ledger(tuning).examination_s(findings.proof), len(bench.runs))]
    assert findings.examined == "doctor: found"
    assert "doctor: found" not in findings.caveats
    assert bench.runs[-1] == (findings.plan, Purpose.PROOF)


def test_the_long_proof_comes_last_and_gets_time_of_its_own() -> None:
    bench, asked = calm(), list[tuple[str, float]]()
    clock = Clock(bench.time, limit_s=1e4)

    def endure(plan: Plan, limit_s: float) -> str:
        asked.append((str(plan), limit_s))
        assert clock.left_s > 1e5
        return "held for long"

    tuning = tuning_of(bench, clock=clock, examine=lambda plan, limit_s: "", endure=endure, prove_s=1e5)
    findings = run(tuning)
    assert findings.long_proof == "held for long"
    assert asked == [(str(findings.plan), 1e5 + Ledger(tuning).examination_s(findings.proof))]
    assert clock.limit_s == pytest.approx(1e4)
    silent = run(tuning_of(calm(), endure=lambda plan, limit_s: "", prove_s=2.0))
    assert silent.long_proof.startswith("not finished within ")
    assert run(tuning_of(calm())).long_proof == ""


def test_what_was_found_is_the_last_caveat_of_a_training() -> None:
    bench = small_bench()
    for environment, expected in (({}, True), ({"mode": "inference"}, False)):
        briefing = briefing_of(bench)
        briefing = briefing.model_copy(
            update={"environment": briefing.environment.model_copy(update={"settings": environment})}
        )
        request, clock = Request(study=":memory:"), Clock(bench.time)
        answer = search(opened(briefing, bench.evaluate), request, (), clock, lambda plan, limit_s: "doctor: found")
        assert ("doctor: found" in answer.caveats[-1:]) is expected


def test_nothing_is_examined_without_time_for_it() -> None:
    whole = calm()
    run(tuning_of(whole))
    took_s, asked = whole.time(), list[Plan]()

    def examine(plan: Plan, limit_s: float) -> str:
        asked.append(plan)
        return ""

    for more_s in (EXAMINED_S / 2, 1000.0):
        bench = calm()
        clock = Clock(bench.time, limit_s=took_s + more_s)
        budget = Budget(memory_bytes=bench.budget_bytes, time_s=took_s + more_s)
        run(tuning_of(bench, clock=clock, budget=budget, examine=examine))
        assert len(asked) == (more_s > EXAMINED_S)


def test_a_compiled_answer_is_examined_if_there_is_time_for_its_uncompiled_steps() -> None:
    bench, limits = calm(), list[float]()

    def compiled(plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        return bench.evaluate(plan, purpose, terms).with_measured(compile_s=1.0)

    def examine(plan: Plan, limit_s: float) -> str:
        limits.append(limit_s)
        return "doctor: found"

    findings = run(tuning_of(bench, evaluate=compiled, examine=examine))
    assert findings.examined == "doctor: found"
    step_s = findings.proof.step_time_s
    assert limits == [pytest.approx(EXAMINED_STEPS * EXAMINED_RATIO * UNCOMPILED_RATIO * step_s + EXAMINED_S)]


def test_an_interrupt_while_the_answer_is_examined_keeps_it() -> None:
    bench = small_bench()

    def examine(plan: Plan, limit_s: float) -> str:
        raise KeyboardInterrupt

    with pytest.raises(SearchInterrupted) as caught:
        search(opened(briefing_of(bench), bench.evaluate), Request(study=":memory:"), (), Clock(bench.time), examine)
    assert (caught.value.answer.plan, Purpose.PROOF) == bench.runs[-1]
