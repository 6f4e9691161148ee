"""The answer of an earlier search is proven again, and searched for again if anything that decides it has changed."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Recommendation
from autofit.core.space import Refusal
from autofit.core.trial import Purpose
from autofit.reports.sources import of_study
from autofit.search.known_answer import question_of
from autofit.search.request import Request
from autofit.search.search import search
from autofit.search.tuning import Evaluate
from tests.fakes import FakeBench, briefing_of, opened, small_bench


def run(
    bench: FakeBench, study: Path, briefing: Briefing | None = None, evaluate: Evaluate | None = None, **asked: Any
) -> tuple[Recommendation, list[tuple[Plan, Purpose]]]:
    """Searches, and returns the answer and what was run for it."""
    before = len(bench.runs)
    bench_now = opened(briefing or briefing_of(bench), evaluate or bench.evaluate)
    found = search(bench_now, Request(study=study, **asked), (), Clock(bench.time))
    return found, bench.runs[before:]


def test_an_unchanged_question_takes_one_proof_and_a_twentieth_of_the_time(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    first, _ = run(bench, study)
    for _ in range(2):
        again, ran = run(bench, study)
        assert ran == [(first.plan, Purpose.PROOF)]
        assert again.duration_s < 0.05 * first.duration_s
        assert (again.plan, again.gain, again.rate_per_s) == (first.plan, first.gain, first.rate_per_s)
        assert [c.plan for c in again.alternatives] == [c.plan for c in first.alternatives]
        assert (again.proof, again.created) != (first.proof, first.created)
        assert sum("only its proof was run again" in text for text in again.caveats) == 1
    report = of_study(study)
    assert report.evidence is not None
    assert report.evidence.race
    assert report.recommendation == again


def test_the_numbers_of_the_loader_are_those_of_the_new_proof(tmp_path: Path) -> None:
    bench, study, fetch_s = small_bench(), tmp_path / "s.db", [0.0]

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        outcome = bench.evaluate(plan, purpose)
        if outcome.measurement is None:
            return outcome
        measurement = outcome.measurement.model_copy(update={"fetch_s": fetch_s[0]})
        return outcome.model_copy(update={"measurement": measurement})

    told = list[list[str]]()
    for took_s in (3.0, 5.0, 0.0, 4.0):
        fetch_s[0] = took_s
        found, _ = run(bench, study, evaluate=evaluate)
        told.append([text.partition(",")[0] for text in found.caveats if text.startswith("loading the samples")])
    took = "loading the samples of one step took"
    assert told == [[f"{took} 3 s"], [f"{took} 5 s"], [], [f"{took} 4 s"]]


def test_it_searches_again_when_asked_to(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    first, _ = run(bench, study)
    again, ran = run(bench, study, anew=True)
    assert again.plan == first.plan
    assert [purpose for _, purpose in ran].count(Purpose.BLOCK) > 2


def _others(bench: FakeBench) -> dict[str, Briefing]:
    briefing = briefing_of(bench)
    environment, space = briefing.environment, bench.space.facts
    budget = briefing.budget.model_copy(update={"memory_bytes": briefing.budget.memory_bytes - 1})
    refusal = Refusal(name="fp16", reason="failed the gate")
    versions = {"torch": "9.9"}
    return {
        "environment": briefing_of(bench, environment=environment.model_copy(update={"versions": versions})),
        "budget": briefing.model_copy(update={"budget": budget}),
        "refused": briefing_of(bench, space=space.model_copy(update={"refused": (refusal,)})),
        "sizes": briefing_of(bench, space=space.model_copy(update={"sizes": space.sizes[:-1]})),
    }


@pytest.mark.parametrize("what", ["environment", "budget", "refused", "sizes"])
def test_what_decides_the_answer_makes_it_another_question(tmp_path: Path, what: str) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    run(bench, study)
    _, ran = run(bench, study, _others(bench)[what])
    assert (bench.space.baseline, Purpose.PROBE) in ran


@pytest.mark.parametrize(("ratio", "probes"), [(0.97, 0), (1.04, 0), (0.9, 1), (1.2, 1)])
def test_a_budget_that_was_not_requested_may_drift_a_little(tmp_path: Path, ratio: float, probes: int) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    briefing = briefing_of(bench)
    budget = briefing.budget.model_copy(update={"requested": False})
    run(bench, study, briefing.model_copy(update={"budget": budget}))
    drifted = budget.model_copy(update={"memory_bytes": round(ratio * budget.memory_bytes)})
    _, ran = run(bench, study, briefing.model_copy(update={"budget": drifted}))
    assert min(len([purpose for _, purpose in ran if purpose is Purpose.BLOCK]), 1) == probes


def test_so_do_the_searcher_and_the_planned_steps(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    run(bench, study)
    for asked in ({"searcher": "random"}, {"planned_steps": 10}):
        _, ran = run(bench, study, **asked)
        assert len(ran) > 1


def test_another_reason_of_the_same_refusal_is_the_same_question(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    reasons = [(Refusal(name="fp16", reason=f"relative error {error}"),) for error in (0.1, 0.11)]
    facts = [bench.space.facts.model_copy(update={"refused": refused}) for refused in reasons]
    run(bench, study, briefing_of(bench, space=facts[0]))
    assert len(run(bench, study, briefing_of(bench, space=facts[1]))[1]) == 1


def test_what_only_an_estimate_reads_of_a_knob_is_not_part_of_the_question() -> None:
    briefing = briefing_of(small_bench())
    knobs = tuple(knob.model_copy(update={"same_memory": knob.values}) for knob in briefing.space.knobs)
    other = briefing.model_copy(update={"space": briefing.space.model_copy(update={"knobs": knobs})})
    assert question_of(other, Objective(), None) == question_of(briefing, Objective(), None)


def test_a_search_that_a_limit_ended_is_continued(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    run(bench, study, max_trials=3)
    _, ran = run(bench, study)
    assert len([purpose for _, purpose in ran if purpose is Purpose.PROBE]) > 1


def test_a_proof_that_fails_or_contradicts_the_study_is_followed_by_a_search(tmp_path: Path) -> None:
    for number, change in enumerate((_fails, _slower)):
        bench, study = small_bench(), tmp_path / f"{number}.db"
        first, _ = run(bench, study)
        again, ran = run(bench, study, evaluate=change(bench, first.plan))
        assert ran[0] == (first.plan, Purpose.PROOF)
        assert (bench.space.baseline, Purpose.PROBE) in ran
        assert not any("only its proof was run again" in text for text in again.caveats)


def _fails(bench: FakeBench, plan: Plan) -> Evaluate:
    def evaluate(asked: Plan, purpose: Purpose, *_: object) -> Outcome:
        outcome = bench.evaluate(asked, purpose)
        failed = Outcome(status=Status.OUT_OF_MEMORY, reason="a driver with a larger context")
        return failed if asked == plan else outcome

    return evaluate


def _slower(bench: FakeBench, plan: Plan) -> Evaluate:
    def evaluate(asked: Plan, purpose: Purpose, *_: object) -> Outcome:
        outcome = bench.evaluate(asked, purpose)
        if asked != plan or outcome.measurement is None:
            return outcome
        times = tuple(3 * time_s for time_s in outcome.measurement.step_times_s)
        return outcome.model_copy(
            update={"measurement": outcome.measurement.model_copy(update={"step_times_s": times})}
        )

    return evaluate


def test_another_tie_margin_is_another_question(tmp_path: Path) -> None:
    bench, study = small_bench(), tmp_path / "s.db"
    run(bench, study)
    assert len(run(bench, study, objective=Objective(tie_ratio=0.03))[1]) > 1
