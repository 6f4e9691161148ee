"""A report is computed from the records of a search: rows, curves, race, memory, and what is missing."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autofit.core.errors import NothingFits
from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.reports import sources
from autofit.reports.alternatives import reasons_of
from autofit.reports.assemble import MOST_LETTERS, assembled, combination_of, known_plans, label_of, rows_of, with_rates
from autofit.reports.report import Report
from autofit.search.evidence import BATCH_CHANGED, CLOSED, OPENED, Answered, RaceLog, SearchResult
from tests.recorded import recorded_search

HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e" + 10_000 * "x"


@pytest.fixture(scope="module", params=["resnet", "encoder", "gpt_varied", "unet"])
def result(request: pytest.FixtureRequest) -> SearchResult:
    return recorded_search(name=request.param)


def report_of(found: SearchResult, **changes: Any) -> Report:
    evidence = found.evidence.model_copy(update=changes)
    return assembled(sources.of_result(SearchResult(found.answer, evidence, found.trials)))


def test_every_plan_that_was_tried_is_a_row_once(result: SearchResult) -> None:
    rows = report_of(result).rows
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    assert {Plan(values=row.values).key for row in rows} == {trial.plan.key for trial in result.trials}
    assert sum(row.role == "recommended" for row in rows) == 1
    assert sum(row.is_baseline for row in rows) == 1
    assert all(row.reason for row in rows if row.status != "measured")


def test_a_plan_with_a_lower_gain_never_has_a_higher_throughput(result: SearchResult) -> None:
    found = report_of(result)
    compared = [row for row in found.rows if row.gain is not None and row.rate_per_s is not None]
    assert len(compared) > 3
    rates, gains = [row.rate_per_s or 0 for row in compared], [row.gain.value for row in compared if row.gain]
    assert rates == sorted(rates, reverse=True)
    assert gains == pytest.approx(sorted(gains, reverse=True))
    assert found.baseline is not None
    for row in compared:
        assert row.gain is not None
        assert (row.rate_per_s or 0) / (found.baseline.rate_per_s or 1) == pytest.approx(row.gain.value)


def test_rounds_of_the_race_average_to_the_ratio_that_is_shown(result: SearchResult) -> None:
    found = report_of(result)
    assert found.race_reference == "baseline"
    assert found.race
    for racer in found.race:
        assert len(racer.ratios) == racer.ratio.pairs >= 4
        mean = math.exp(sum(map(math.log, racer.ratios)) / len(racer.ratios))
        assert mean == pytest.approx(racer.ratio.value, rel=1e-6)
        assert found.row(racer.rank).gain == racer.ratio


def test_answers_are_in_the_order_of_time_and_as_fast_as_their_rows(result: SearchResult) -> None:
    found, logged = report_of(result), result.evidence.answers
    assert len(logged) > 1
    assert [each.at_s for each in found.answers] == [each.at_s for each in logged]
    rows = [found.row(each.rank) for each in found.answers]
    assert [Plan(values=row.values) for row in rows] == [each.plan for each in logged]
    assert rows[0].is_baseline
    assert rows[-1].role == "recommended"
    assert [each.rate_per_s for each in found.answers] == [row.rate_per_s for row in rows]
    assert [each.ratio for each in found.answers] == [row.gain.value if row.gain else None for row in rows]


def test_an_answer_whose_later_proof_failed_is_as_fast_as_its_probe(result: SearchResult) -> None:
    failed = Outcome(status=Status.OVER_BUDGET, reason="above the budget")
    lost = Answered(at_s=1e3, plan=result.trials[0].plan.replace(micro_batch_size=3), ratio=1.5)
    unknown = lost.model_copy(update={"plan": lost.plan.replace(micro_batch_size=5)})
    evidence = result.evidence.model_copy(update={"answers": (*result.evidence.answers, lost, unknown)})
    trials = (*result.trials, Trial(number=999, plan=lost.plan, outcome=failed))
    found = assembled(sources.of_result(SearchResult(result.answer, evidence, trials)))
    last, baseline = found.answers[-1], found.baseline
    assert found.row(last.rank).rate_per_s is None
    assert baseline is not None
    assert baseline.rate_per_s is not None
    assert (last.at_s, last.ratio) == (1e3, 1.5)
    assert last.rate_per_s == pytest.approx(1.5 * baseline.rate_per_s)


def test_the_race_says_why_a_plan_lost_in_the_words_of_the_summary(result: SearchResult) -> None:
    r = result.answer
    assert r is not None
    reasons = reasons_of(r)
    found = report_of(result)
    notes = {racer.rank: racer.note for racer in found.race}
    alternatives = [rank for rank in notes if not found.row(rank).role]
    assert alternatives
    assert {rank: notes[rank] for rank in alternatives} == {
        rank: reasons[Plan(values=found.row(rank).values).key] for rank in alternatives
    }
    assert not [note for note in notes.values() if note in ("slower in the race", "tied in the race")]
    assert [note for rank, note in notes.items() if found.row(rank).role == "recommended"] in ([""], [])


def test_curves_are_of_one_combination_in_order_of_size(result: SearchResult) -> None:
    found = report_of(result)
    for curve in found.curves:
        rows = [found.row(rank) for rank in curve.ranks]
        assert len(rows) > 1 or any(row.role == "recommended" for row in rows)
        assert {row.combination for row in rows} == {curve.combination}
        sizes = [(row.micro_batch_size, row.accumulation_steps) for row in rows]
        assert sizes == sorted(sizes)


def test_a_guess_without_bounds_is_not_in_the_report(result: SearchResult) -> None:
    guess = Estimate(value_bytes=123_456_789, basis="a line through two sizes")
    found = report_of(result, estimates={trial.plan.key: guess for trial in result.trials})
    shown = [row.estimate for row in found.rows if row.estimate is not None]
    assert guess not in shown
    assert all(estimate.is_bounded for estimate in shown)


def test_memory_gates_and_what_was_left_out_are_shown(result: SearchResult) -> None:
    found = report_of(result)
    untraced = "memory of the recommended plan by kind and over a step: it could not be traced, or there was no time"
    traced = result.evidence.profile is not None
    assert [each.role for each in found.memory] == [*(["recommended"] if traced else []), "baseline"]
    assert found.missing == (() if traced else (untraced,))
    assert [(gate.name, gate.passed) for gate in found.gates] == [("precision=bf16", True), ("accumulation", False)]
    assert len(found.left_out) == len(result.evidence.omissions)
    assert " faster: " in found.headline
    assert found.chosen.startswith("The plan: micro batch ")


def test_a_plan_whose_proof_failed_has_no_throughput(result: SearchResult) -> None:
    assert result.answer is not None
    loser = result.answer.alternatives[0]
    failed = Outcome(
        status=Status.OVER_BUDGET, reason="its peak is above the budget", measurement=loser.outcome.measurement
    )
    trials = (*result.trials, Trial(number=999, plan=loser.plan, outcome=failed))
    found = assembled(sources.of_result(SearchResult(result.answer, result.evidence, trials)))
    (row,) = [row for row in found.rows if row.values == dict(loser.plan.values)]
    assert (row.status, row.rate_per_s, row.gain, row.on_front) == ("over budget", None, None, False)
    assert row.peak_bytes is not None


def test_hostile_texts_are_shown_as_text_and_cut(result: SearchResult) -> None:
    bad = Trial(
        number=999,
        plan=result.trials[0].plan.replace(micro_batch_size=7, precision=HOSTILE),
        outcome=Outcome(status=Status.USER_ERROR, reason=HOSTILE),
    )
    evidence = result.evidence.model_copy(update={"title": HOSTILE, "caveats": (HOSTILE, "lone \ud800")})
    assert result.answer is not None
    named = result.answer.model_copy(update={"title": HOSTILE, "caveats": (HOSTILE, "lone \ud800")})
    found = assembled(sources.of_result(SearchResult(named, evidence, (*result.trials, bad))))
    text = found.model_dump_json(by_alias=True)
    assert "\\u001b" not in text
    assert "\u202e" not in text
    assert HOSTILE[:30] in found.title
    assert max(len(found.title), *(len(row.reason) for row in found.rows), *map(len, found.caveats)) <= MOST_LETTERS
    assert "lone \ufffd" in found.caveats


def test_without_a_baseline_in_the_race_the_recommended_plan_is_the_reference() -> None:
    result = recorded_search()
    r = result.answer
    assert r is not None
    race = tuple(log for log in result.evidence.race if log.plan != r.baseline.plan)
    found = report_of(result, race=race)
    assert found.race_reference == "recommended"
    assert len(found.race) == len(race) - 1
    assert all(racer.ratio.value < 1.05 for racer in found.race)


def test_who_joined_the_race_late_is_paired_with_the_rounds_it_ran() -> None:
    result = recorded_search()
    r = result.answer
    assert r is not None
    own = RaceLog(plan=r.baseline.plan, log_rates=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0))
    late = RaceLog(plan=r.plan, joined=2, log_rates=(2.5, 3.5, 4.5, 5.5))
    (racer,) = report_of(result, race=(own, late)).race
    assert racer.ratios == pytest.approx([math.exp(0.5)] * 4)


def test_a_search_without_a_feasible_plan_has_a_report_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(NothingFits):
        recorded_search(tmp_path / "study.journal", memory_bytes=2**20)
    found = assembled(sources.of_study(tmp_path / "study.journal"))
    assert (found.feasible, found.recommended) == (False, None)
    assert found.headline.startswith("No plan is recommended: no plan fits the budget of 1 MiB.")
    assert found.failure.startswith("no plan fits into 1 MiB")
    assert found.rows
    assert all(row.reason for row in found.rows)
    assert (found.apply_code, found.curves, found.race) == ("", (), ())
    assert found.command == "autofit tune train.py:make_resnet"


def without_notes(path: Path, *names: str) -> Report:
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"user_attr":{{"{name}":' in line for name in names)]
    assert len(kept) < len(lines)
    path.write_text("".join(kept))
    return assembled(sources.of_study(path))


def test_a_search_that_did_not_end_says_so_and_keeps_what_was_asked(tmp_path: Path) -> None:
    result = recorded_search(tmp_path / "study.journal")
    found = without_notes(tmp_path / "study.journal", CLOSED)
    assert found.headline.startswith(
        "No plan is recommended: the search did not end. The baseline, micro batch 8, was "
    )
    assert "its process died, or it still runs" in found.missing[0]
    assert (found.command, found.gates) == ("autofit tune train.py:make_resnet", ())
    assert found.baseline is not None
    assert found.baseline.gain is not None
    assert len(found.rows) == len({trial.plan for trial in result.trials})


def test_a_study_without_evidence_is_shown_without_inventing_a_baseline(tmp_path: Path) -> None:
    result = recorded_search(tmp_path / "study.journal")
    found = without_notes(tmp_path / "study.journal", OPENED, CLOSED)
    assert found.headline.startswith("No answer is known: the study does not have")
    assert (found.baseline, found.environment) == (None, result.evidence.environment)
    assert all(row.gain is None and row.rate_per_s is not None for row in found.rows)
    assert "gains: the study does not say which plan is the baseline" in found.missing
    assert "micro_batch_size=" in found.rows[0].label


@pytest.mark.parametrize(
    ("purpose", "how"), [(Purpose.PROOF, "its proof was not completed"), (Purpose.BLOCK, "was cut off in the race")]
)
def test_a_measured_plan_whose_later_run_was_cut_off_is_listed_as_measured(purpose: Purpose, how: str) -> None:
    result = recorded_search()
    answer, before = result.answer, assembled(sources.of_result(result))
    assert answer is not None
    row = next(row for row in before.rows if not row.role and row.rate_per_s is not None)
    late = Outcome(status=Status.TIMED_OUT, reason="not finished in 9 s")
    run = Trial(number=999, plan=Plan(values=row.values), outcome=late, purpose=purpose)
    noted = tuple(each.model_copy(update={"note": ""}) for each in answer.alternatives)
    found = assembled(
        sources.of_result(
            replace(result, answer=answer.model_copy(update={"alternatives": noted}), trials=(*result.trials, run))
        )
    )
    (after,) = [each for each in found.rows if each.values == row.values]
    assert (after.status, after.rate_per_s, after.gain) == ("measured", row.rate_per_s, row.gain)
    assert after.reason == f"{how}: timed out, not finished in 9 s"


def test_measured_plans_without_an_answer_are_on_the_scale_of_probes() -> None:
    result = recorded_search()
    evidence = result.evidence.model_copy(update={"answer": None, "standings": (), "failure": "time was over"})
    found = assembled(sources.of_result(SearchResult(None, evidence, result.trials)))
    measured = [row for row in found.rows if row.rate_per_s is not None]
    assert len(measured) == len(found.rows)
    assert all(row.gain is not None and row.gain.pairs == 0 for row in measured)
    assert any(row.on_front for row in measured)
    assert found.curves


def test_500_trials_take_well_below_a_second() -> None:
    result = recorded_search(name="mlp")
    own = result.trials[-1]
    many = tuple(
        own.model_copy(update={"number": number, "plan": own.plan.replace(micro_batch_size=10_000 + number)})
        for number in range(500)
    )
    began = time.perf_counter()
    found = assembled(sources.of_result(SearchResult(result.answer, result.evidence, (*result.trials, *many))))
    assert time.perf_counter() - began < 0.8
    assert len(found.rows) > 500
    other = [row for row in found.rows if row.micro_batch_size >= 10_000]
    assert all(row.rate_per_s is None for row in other)  # they are not on the scale of the race
    assert all("not known on the scale of the race" in row.reason for row in other)


def test_the_recommended_combination_has_a_curve_however_few_of_its_plans_ran() -> None:
    found = report_of(recorded_search(name="resnet"))
    assert found.recommended is not None
    own = [curve for curve in found.curves if curve.combination == found.recommended.combination]
    assert [found.recommended.rank in curve.ranks for curve in own] == [True]
    assert any(len(curve.ranks) > 1 for curve in found.curves)


def test_the_caveat_on_a_changed_global_batch_is_first() -> None:
    result = recorded_search()
    assert result.answer is not None
    changed = f"{BATCH_CHANGED} from 64 to 768: adjust the learning rate"
    r = result.answer.model_copy(update={"caveats": ("one", changed, "two")})
    assert assembled(sources.of_result(SearchResult(r, result.evidence, result.trials))).caveats == (
        changed, "one", "two",
    )  # fmt: skip


RESULT = recorded_search()


def test_an_interrupted_or_skipped_run_does_not_hide_a_measured_one() -> None:
    first = RESULT.trials[0]
    stopped = Trial(number=99, plan=first.plan, outcome=Outcome(status=Status.INTERRUPTED, reason="stopped"))
    assert known_plans(None, [first, stopped])[first.plan.key].outcome == first.outcome
    assert known_plans(None, [stopped])[first.plan.key].outcome.status is Status.INTERRUPTED


def test_the_latest_run_decides_and_the_peak_that_was_seen_stays() -> None:
    first = RESULT.trials[0]
    failed = Trial(number=99, plan=first.plan, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="refused"))
    found = known_plans(None, [first, failed])[first.plan.key]
    assert found.outcome.status is Status.OUT_OF_MEMORY
    assert first.outcome.measurement is not None
    assert found.peak_bytes == first.outcome.measurement.memory.judged_bytes


def test_a_plan_file_alone_gives_the_measured_plans() -> None:
    r = RESULT.answer
    assert r is not None
    found = with_rates(known_plans(r, ()), r)
    assert set(found) == {r.plan.key, r.baseline.plan.key, *(each.plan.key for each in r.alternatives)}
    assert found[r.plan.key].rate_per_s == r.rate_per_s


def test_a_record_without_throughputs_is_put_on_the_scale_of_its_gains() -> None:
    r = RESULT.answer
    assert r is not None
    bare = [each.model_copy(update={"rate_per_s": None}) for each in (r.baseline, *r.alternatives)]
    older = r.model_copy(update={"rate_per_s": None, "baseline": bare[0], "alternatives": tuple(bare[1:])})
    found = with_rates(known_plans(older, ()), older)
    own = found[r.baseline.plan.key].rate_per_s
    assert own
    for each in found.values():
        assert each.gain is not None
        assert each.rate_per_s == each.gain.value * own


def test_without_a_baseline_a_label_has_all_values() -> None:
    plan = Plan(values={"micro_batch_size": 4, "precision": "bf16"})
    assert label_of(plan, None) == "micro_batch_size=4 precision=bf16"
    assert combination_of(plan, None) == "precision=bf16"
    own = plan.replace(precision="fp32", micro_batch_size=8)
    assert (combination_of(plan, own), combination_of(own, own)) == ("precision=bf16", "batch size only")


def test_plans_without_a_throughput_come_last_those_near_the_budget_first() -> None:
    trials = [
        Trial(
            number=1, plan=Plan(values={"micro_batch_size": 64}), outcome=Outcome(status=Status.SKIPPED, reason="no")
        ),
        *RESULT.trials,
    ]
    r = RESULT.answer
    assert r is not None
    known = with_rates(known_plans(r, trials), r)
    rows = rows_of(known.values(), r.plan, r.baseline.plan, {})
    assert (rows[-1].status, rows[-1].accumulation_steps) == ("skipped", 1)
    assert rows[0].rate_per_s == max(row.rate_per_s or 0 for row in rows)
