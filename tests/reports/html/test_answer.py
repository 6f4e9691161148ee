"""The answer: what it brings and what it costs, in each of the cases that there are."""

import re
from typing import Any

import pytest

from autofit.core.strategy_record import StrategyRecord
from autofit.reports.html.answer import answer
from autofit.reports.report import Report
from tests.reports.samples import infeasible, kept, typical


def words(report: Report) -> str:
    """Returns the text of the answer."""
    return " ".join(re.sub(r"<[^>]+>", " ", answer(report)).split())


def test_the_gain_has_its_interval_and_the_costs_are_beside_it() -> None:
    found = words(typical())
    assert "Gain 2.58x over the baseline; 95 % interval 2.55 to 2.61" in found
    assert "Throughput 512 samples/s; baseline 198.4" in found
    assert "Peak memory 15.12 GiB 76% of the budget, 20 GiB; baseline 11.42 GiB" in found
    assert "Micro batch × steps 128 × 2 global batch 256" in found


def test_each_changed_knob_is_shown_and_no_other() -> None:
    found = words(typical())
    assert "precision fp32 bf16 compile off default checkpointing off blocks" in found
    assert "throughput 198.4 samples/s 512 samples/s (+158%) peak memory 11.42 GiB 15.12 GiB (+32%)" in found


def test_each_technique_is_explained_below_the_knobs() -> None:
    hostile = StrategyRecord(name="precision", knobs=(), about="<b>computes</b>", cost="nothing", effect="rounding")
    report = typical(strategies=(hostile,))
    found = words(report)
    assert found.endswith("precision: &lt;b&gt;computes&lt;/b&gt;; costs nothing; results differ by rounding")
    assert "results differ" not in words(typical())


def test_the_plan_for_evaluation_is_below_the_answer() -> None:
    assert "Evaluation" not in words(typical())
    found = typical().model_copy(update={"evaluation": ("Use micro batch 512: 9,100 samples/s.", "Budget 4 GiB.")})
    assert words(found).endswith("Evaluation: Use micro batch 512: 9,100 samples/s. Budget 4 GiB.")


def test_without_a_race_the_gain_is_that_of_separate_runs() -> None:
    report = typical()
    best = report.row(1)
    assert best.gain is not None
    row = best.model_copy(update={"gain": best.gain.model_copy(update={"pairs": 0})})
    assert "≈ " in words(report.model_copy(update={"rows": (row, *report.rows[1:])}))


def test_a_baseline_that_does_not_run_has_no_gain() -> None:
    report = typical()
    rows = [row.model_copy(update={"gain": None}) for row in report.rows]
    own = next(place for place, row in enumerate(rows) if row.is_baseline)
    rows[own] = rows[own].model_copy(update={"rate_per_s": None, "peak_bytes": None, "status": "out of memory"})
    found = words(report.model_copy(update={"rows": tuple(rows)}))
    assert "Gain – the baseline was not measured within the budget" in found
    assert "throughput out of memory 512 samples/s" in found


def test_a_baseline_that_is_the_answer_is_not_compared_with_itself() -> None:
    found = words(kept())
    assert "Change none the baseline is the answer" in found
    assert "What changes" not in found


def test_an_answer_without_a_plan_says_so() -> None:
    found = words(infeasible())
    assert (
        "No plan fits the budget. Recommendation none no plan fits the budget of 20 GiB Memory budget 20 GiB" in found
    )
    assert "lowest estimated peak: 23.5 GiB" in found


def test_the_cause_of_a_search_without_a_plan_is_in_its_tile_and_the_whole_message_below_the_headline() -> None:
    made = infeasible().model_copy(
        update={"cause": "the user's code failed", "failure": "your code failed in forward. Fix it, then tune again."}
    )
    found = words(made)
    assert "Recommendation none the user&#x27;s code failed" in found or "none the user's code failed" in found
    assert "no plan fits" not in found
    assert found.index("Fix it, then tune again.") < found.index("Recommendation none")


def test_a_changed_global_batch_is_a_row_of_what_changes() -> None:
    assert "samples per optimizer step" not in words(typical())
    report = typical()
    (best,) = [row for row in report.rows if row.role == "recommended"]
    grown = best.model_copy(update={"accumulation_steps": 6})
    rows = tuple(grown if row is best else row for row in report.rows)
    assert "samples per optimizer step 256 768" in words(report.model_copy(update={"rows": rows}))


def test_a_proof_that_contradicts_the_throughput_stands_beside_the_gain() -> None:
    assert "the proof ran" not in words(typical())
    assert "interval 2.55 to 2.61; the proof ran at 210.4 samples/s" in words(typical(proof_rate_per_s=210.4))


def test_trials_are_counted_beside_the_plans() -> None:
    counts = "19 trials of 16 plans: 13 measured, 2 out of memory, 4 skipped, in 3 min 32 s"
    assert f"Search 16 plans {counts}" in words(typical())


def test_the_next_ways_are_links_and_a_plan_without_a_share_of_the_budget_is_no_zero() -> None:
    report = typical()
    page = str(answer(report))
    for anchor in ("apply", "gates", "caveats"):
        assert f'href="#{anchor}"' in page
    assert "less than 1% of the budget, 20 TiB" in words(report.model_copy(update={"budget_bytes": 20 * 2**40}))
    assert "href" not in str(answer(infeasible()))


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (("exact",), "the same"),
        (("exact", "rounding"), "differ by rounding"),
        (("rounding", "changes the result"), "others"),
    ],
)
def test_what_the_plan_does_to_the_training_results_is_a_row(effects: tuple[Any, ...], expected: str) -> None:
    made = tuple(StrategyRecord(name="s", knobs=("k",), about="", cost="", effect=each) for each in effects)
    assert f"training results as they are {expected}" in words(typical().model_copy(update={"strategies": made}))
    assert "training results" not in words(typical())


def test_the_phases_of_a_step_are_rows_where_they_were_timed() -> None:
    report = typical()
    phases = {"transfer": 1e-6, "forward": 0.2, "backward": 0.4, "optimizer": 0.1}
    rows = [row.model_copy(update={"phases_s": phases if row.role == "recommended" else {}}) for row in report.rows]
    found = words(report.model_copy(update={"rows": tuple(rows)}))
    assert "one step: forward – 200 ms one step: backward – 400 ms one step: optimizer – 100 ms" in found
    assert "transfer" not in found
    slower = [
        row.model_copy(update={"phases_s": {**phases, "forward": 0.8}}) if row.is_baseline else row for row in rows
    ]
    assert "one step: forward 800 ms 200 ms" in words(report.model_copy(update={"rows": tuple(slower)}))
    assert "one step" not in words(report)
