"""Scoring a search: hand-made runs whose worth is known, and one real one."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.answer import Candidate
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.search.request import Findings
from autofit.study import Study
from scripts.bench.report import percentile
from scripts.bench.search import cases, runs, scores
from scripts.bench.search.replay import TableBench, limited, peaks_of
from scripts.bench.search.tables import centred, record
from tests.fakes import MIB, OPTIMIZER, PRECISION, FakeBench, small_bench, space_of

DEFAULT = next(iter(runs.SEARCHERS))


def device() -> FakeBench:
    return small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8))


@pytest.fixture(scope="module")
def case() -> cases.Case:
    full = record(device(), "small")
    table = centred(limited(full, 1500 * MIB), device())
    return cases.Case("small", "", table, peaks_of(full), Objective())


def fastest(case: cases.Case) -> Plan:
    return max((p for p in case.table.plans if p.key in case.scores), key=lambda p: case.scores[p.key])


def ran(case: cases.Case, plan: Plan | None, *done: tuple[Plan, Purpose, Status], **fields: Any) -> runs.Ran:
    """A search that ran these and returned `plan`."""
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    measurement = Measurement(step_times_s=(0.1,), samples_per_step=8, memory=memory)

    def outcome(status: Status) -> Outcome:
        return Outcome(status=status, reason="x", measurement=measurement if status is Status.MEASURED else None)

    findings = None if plan is None else Findings(
        plan=plan, proof=measurement, gain=None, alternatives=(), caveats=(), trials=(), counts={}, stopped="",
        baseline=Candidate(plan=case.table.space.baseline, outcome=outcome(Status.MEASURED)),
    )  # fmt: skip
    return runs.Ran(runs=[(p, why, outcome(status)) for p, why, status in done], findings=findings, **fields)


def test_a_search_is_scored(case: cases.Case) -> None:
    plan, bench = case.table.space.baseline, device()
    result = runs.scored(
        case,
        ran(
            case, plan,
            (plan, Purpose.PROBE, Status.MEASURED),
            (plan.replace(micro_batch_size=64), Purpose.PROBE, Status.OUT_OF_MEMORY),
            (plan, Purpose.BLOCK, Status.MEASURED),
            (plan, Purpose.BLOCK, Status.OVER_BUDGET),
            (plan, Purpose.PROOF, Status.MEASURED),
            skipped=3, charged_s=case.grid_s / 4, whole_s=2.0, device_s=0.5, searcher_s=1.0,
        ),
    )  # fmt: skip
    assert result.regret == pytest.approx(1 - bench.samples_per_s(plan) / bench.samples_per_s(bench.best()))
    assert 0.1 < result.regret < 0.9
    faster = bench.space.at(plan.combination.replace(precision="bf16"), 8)
    better = runs.scored(case, ran(case, plan, *((p, Purpose.PROBE, Status.MEASURED) for p in (plan, faster))))
    assert better.regret == result.regret == result.overlooked
    assert better.overlooked == pytest.approx(1 - bench.samples_per_s(faster) / bench.samples_per_s(bench.best()))
    assert (result.probes, result.blocks, result.skipped) == (2, 2, 3)
    assert (result.out_of_memory, result.over_budget) == (1, 1)
    assert result.share == pytest.approx(0.25)
    assert (result.own_s, result.searcher_s) == (1.5, 1.0)
    assert result.broken == ()


def test_the_best_plan_has_no_regret(case: cases.Case) -> None:
    best = fastest(case)
    result = runs.scored(case, ran(case, best, (best, Purpose.PROOF, Status.MEASURED)))
    assert result.regret == 0
    assert result.broken == ()


@pytest.mark.parametrize("status", [None, Status.OUT_OF_MEMORY])
def test_a_plan_that_was_not_proven_breaks_a_promise(case: cases.Case, status: Status | None) -> None:
    plan = case.table.space.baseline
    proofs = [] if status is None else [(plan, Purpose.PROOF, status)]
    result = runs.scored(case, ran(case, plan, (plan, Purpose.PROBE, Status.MEASURED), *proofs))
    assert result.broken == ("not proven",)


def test_a_plan_over_the_budget_breaks_a_promise_and_is_worth_nothing(case: cases.Case) -> None:
    plan = case.table.space.baseline.replace(micro_batch_size=64)
    assert case.peaks[plan.key] > 1500 * MIB
    result = runs.scored(case, ran(case, plan, (plan, Purpose.PROOF, Status.MEASURED)))
    assert result.broken == ("not inside the budget",)
    assert result.regret == 1


def test_a_search_that_returns_nothing_has_lost_everything(case: cases.Case) -> None:
    result = runs.scored(case, ran(case, None, error="NothingFits: nothing"))
    assert (result.regret, result.plan, result.error) == (1, "", "NothingFits: nothing")
    assert result.broken == ()


def test_every_estimator_plays_the_same_search_twice_alike_and_keeps_its_promises(case: cases.Case) -> None:
    bench = TableBench(case.table)
    for estimator in runs.ESTIMATORS:
        results = [runs.scored(case, runs.rehearse(case, bench, DEFAULT, estimator, seed)) for seed in (1, 2, 1)]
        same = [(r.plan, r.probes, r.charged_s) for r in results]
        assert same[0] == same[2] != same[1]
        assert all(r.plan and not r.broken for r in results)
        assert all(r.regret < 0.2 and r.probes > 3 and 0 < r.share < 1 for r in results)


def test_exact_estimates_save_failures(case: cases.Case) -> None:
    bench = TableBench(case.table)
    failures = {
        estimator: sum(
            runs.scored(case, runs.rehearse(case, bench, DEFAULT, estimator, seed)).out_of_memory for seed in range(3)
        )
        for estimator in ("exact", "missing")
    }
    assert failures["exact"] == 0


def test_a_study_on_disk_may_keep_the_trials(case: cases.Case, tmp_path: Path) -> None:
    with_study = runs.rehearse(
        case, TableBench(case.table), DEFAULT, "exact", 0, log=scores._study(case, tmp_path / "study.db")
    )
    assert isinstance(scores._study(case, tmp_path / "study.db"), Study)
    without = runs.rehearse(case, TableBench(case.table), DEFAULT, "exact", 0)
    assert [run[:2] for run in with_study.runs] == [run[:2] for run in without.runs]


def results(case: cases.Case, *changes: dict[str, Any]) -> list[runs.Result]:
    plan = fastest(case)
    base = runs.scored(case, ran(case, plan, (plan, Purpose.PROOF, Status.MEASURED)))
    fields = {field: getattr(base, field) for field in base.__dataclass_fields__}
    return [runs.Result(**(fields | change)) for change in changes]


def test_figures_over_seeds_and_what_is_missed(case: cases.Case) -> None:
    good = [{"regret": 0.0, "probes": 10, "out_of_memory": 0}] * 19
    got = scores.summarised([results(case, *good, {"regret": 0.1, "probes": 30, "out_of_memory": 2})], "exact")
    assert got["regret"] == pytest.approx(0.005)
    assert (got["regret_95"], got["regret_most"]) == (0.0, 0.1)
    assert (got["probes"], got["probes_most"]) == (10, 30)
    assert (got["out_of_memory"], got["out_of_memory_most"], got["out_of_memory_runs"]) == (0, 2, 1)
    low, high = got["regret_interval"]
    assert low <= got["regret"] <= high <= 0.02
    assert got["missed"] == ["out_of_memory_most"]
    again = scores.summarised([results(case, *good, {"out_of_memory": 2})], "missing")
    assert again["missed"] == []
    worse = [results(case, *[{"probes": 10, "regret": 0.006}] * 3)]
    assert scores.summarised(worse, "exact")["missed"] == []
    assert scores.summarised(worse, "traced")["missed"] == ["regret"]


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"regret": 0.006}, "regret"),
        ({"probes": 13}, "probes"),
        ({"share": 0.11}, "share"),
        ({"broken": ("not proven",)}, "broken"),
        ({"probes": 1, "own_s": 0.5}, "trial_s"),
    ],
)
def test_each_requirement_can_be_missed(case: cases.Case, change: dict[str, Any], missed: str) -> None:
    got = scores.summarised([results(case, *([{"probes": 10, "share": 0.05} | change] * 3))], "traced")
    assert missed in got["missed"]
    assert "MISSED" in scores.in_words("x", got)


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([7.0], 0.95) == 7.0


def test_the_trace_of_a_search_shows_what_was_seen_and_what_is_true(case: cases.Case) -> None:
    text = scores.traced(case, runs.rehearse(case, TableBench(case.table), DEFAULT, "exact", 0))
    assert "probe measured: seen" in text
    assert "proof measured" in text
    assert text.splitlines()[-1].startswith("  best micro_batch_size=")


def test_a_table_under_two_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = limited(record(device(), "gpt"), 1500 * MIB)
    (tmp_path / "gpt.json").write_text(full.to_json())
    monkeypatch.setattr(cases, "RECORDED", tmp_path)
    assert cases.names()[0] == "gpt"
    wide, tight = cases.cases("gpt")
    assert (wide.name, tight.name) == ("gpt", "gpt-tight")
    assert wide.table == full
    baseline = full.space.baseline
    assert tight.table.budget.memory_bytes == pytest.approx(1.15 * device().peak_bytes(baseline), rel=1e-6)
    assert tight.best < wide.best
    assert tight.grid_s == wide.grid_s
