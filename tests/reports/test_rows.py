"""Rows: the latest run decides, all throughputs are on one scale, an unknown baseline is not invented."""

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.reports.rows import combination_of, known_plans, label_of, rows_of, with_rates
from tests.recorded import recorded_search

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
    r = RESULT.recommendation
    assert r is not None
    found = with_rates(known_plans(r, ()), r, r.objective)
    assert set(found) == {r.plan.key, r.baseline.plan.key, *(each.plan.key for each in r.alternatives)}
    assert found[r.plan.key].rate_per_s == r.rate_per_s


def test_a_record_without_throughputs_is_put_on_the_scale_of_its_gains() -> None:
    r = RESULT.recommendation
    assert r is not None
    bare = [each.model_copy(update={"rate_per_s": None}) for each in (r.baseline, *r.alternatives)]
    older = r.model_copy(update={"rate_per_s": None, "baseline": bare[0], "alternatives": tuple(bare[1:])})
    found = with_rates(known_plans(older, ()), older, older.objective)
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
    r = RESULT.recommendation
    assert r is not None
    known = with_rates(known_plans(r, trials), r, r.objective)
    rows = rows_of(known.values(), r.plan, r.baseline.plan, {})
    assert (rows[-1].status, rows[-1].accumulation_steps) == ("skipped", 1)
    assert rows[0].rate_per_s == max(row.rate_per_s or 0 for row in rows)
