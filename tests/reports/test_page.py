"""The page of a report: its parts, its answer, its table of plans, and the card of a notebook."""

import html
import random
import re
import shutil
import subprocess
import sys
from importlib import resources
from time import process_time
from typing import Any
from xml.dom.minidom import parseString

import pytest

from autofit.core.answer import Candidate, Ratio
from autofit.core.briefing import GateRecord
from autofit.core.outcome import Outcome, Status
from autofit.core.space import StrategyRecord
from autofit.reports.markup import CODE
from autofit.reports.page import answer, card, plans_table, render
from autofit.reports.report import AnswerTime, LeftOut, Report
from autofit.reports.svg import CHARTS
from tests.reports import samples
from tests.reports.page_checks import (
    Reader,
    check_asks_for_nothing,
    check_policy,
    check_well_formed_and_small,
)
from tests.reports.samples import HOSTILE, bounded, hostile, infeasible, kept, large, typical
from tests.reports.test_summary import BEST, OWN, measured, record
from tests.reports.xml_tree import tree

PAGES = {name: render(make()) for name, make in samples.ALL.items()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_small(name: str) -> None:
    check_well_formed_and_small(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_runs_only_its_own_script(name: str) -> None:
    check_asks_for_nothing(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_admits_exactly_what_is_in_the_page(name: str) -> None:
    check_policy(PAGES[name])


def test_every_section_and_chart_is_there() -> None:
    found = PAGES["typical"]
    anchors = re.findall(r'<section id="([a-z-]+)"', found)
    expected = ["answer", *(chart.kind for chart in CHARTS)]
    expected += ["plans", "caveats", "gates", "left-out", "environment", "apply"]
    assert anchors == expected
    contents = found[found.index("<nav") : found.index("</nav>")]
    assert re.findall(r'href="#([a-z-]+)"', contents) == expected
    for chart in CHARTS:
        assert html.unescape(found).count(chart.aid) == 1


def test_a_report_without_values_has_fewer_sections_and_says_why() -> None:
    found = PAGES["bare"]
    anchors = re.findall(r'<section id="([a-z-]+)"', found)
    assert anchors == ["answer", "why", "front", "plans", "caveats", "left-out", "environment"]
    assert "the study was written by a version that did not keep it" in found


def test_a_report_without_a_plan_is_still_drawn() -> None:
    found = PAGES["infeasible"]
    assert "No plan fits the budget." in found
    assert "The smallest plan that was tried needs 36.4 GiB of 20 GiB." in found
    assert found.count('<tr id="p') == len(samples.infeasible().rows)


def test_numbers_of_gates_code_and_environment_are_there() -> None:
    found = html.unescape(PAGES["typical"])
    for text in (
        "gradient 3.1e-06, allowed 1e-03", "autofit.load(\"autofit.yaml\")",
        "--global-batch 256 --memory 20GiB", "NVIDIA RTX 4090 (cuda)", "2.13.0+cu130", "model has no 2-d convolution",
    ):  # fmt: skip
        assert text in found


def test_hostile_texts_are_text() -> None:
    found = PAGES["hostile"]
    assert "alert(1)" in found
    assert "<script>alert" not in found
    assert "<img" not in found
    assert "\x1b" not in found
    longest = max(len(run) for run in re.findall("A+", found))
    assert longest <= CODE


@pytest.mark.parametrize("seed", range(12))
def test_any_values_can_be_drawn(seed: int) -> None:
    noise = random.Random(seed)
    report = samples.typical(unit=noise.choice(["samples", "tokens"]), budget_bytes=noise.choice([1, 2**20, 2**50]))
    rows = []
    for one in report.rows[: noise.choice([1, 3, len(report.rows)])]:
        values = {
            "micro_batch_size": noise.choice([0, 1, 7, 24, 10**6]),
            "accumulation_steps": noise.choice([1, 10**5]),
            "rate_per_s": noise.choice([None, 0.0, 1e-9, 123.0, 1e12]),
            "peak_bytes": noise.choice([None, 0, 1, 2**20, 2**50]),
            "gain": noise.choice([None, one.gain]),
            "estimate": noise.choice([None, one.estimate]),
        }
        rows.append(one.model_copy(update=values))
    ranks = {row.rank for row in rows if row.rate_per_s is not None}
    curves = [curve.model_copy(update={"ranks": tuple(ranks & set(curve.ranks))}) for curve in report.curves]
    answers = [
        AnswerTime(at_s=noise.choice([0.0, 1e-3, 9.9, 1e6]), rank=row.rank, rate_per_s=row.rate_per_s)
        for row in rows
        if row.rate_per_s is not None
    ]
    changed = report.model_copy(
        update={
            "rows": tuple(rows),
            "curves": tuple(curve for curve in curves if curve.ranks),
            "race": tuple(racer for racer in report.race if racer.rank in ranks),
            "answers": tuple(sorted(answers, key=lambda answer: answer.at_s)),
        }
    )
    reader = Reader(render(changed))
    assert (reader.open, reader.wrong) == ([], [])


def test_a_report_without_any_plan_can_be_drawn() -> None:
    lists = ("rows", "curves", "race", "answers", "memory", "caveats", "gates", "refused", "left_out")
    empty = samples.typical().model_copy(update=dict.fromkeys(lists, ()))
    assert "0 plans" in render(empty)


def test_the_same_report_makes_the_same_page() -> None:
    assert render(samples.typical()) == PAGES["typical"]


def test_five_hundred_plans_take_less_than_half_a_second_of_cpu_time() -> None:
    report = samples.large()
    times = []
    for _ in range(3):
        start = process_time()
        render(report)
        times.append(process_time() - start)
    assert min(times) < 1.0  # on a machine that others load; 0.2 s alone


def test_a_page_is_made_without_torch() -> None:
    code = "import sys, autofit.reports.page, autofit.reports.svg; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_long_list_of_combinations_is_folded_after_ten() -> None:
    many = tuple(LeftOut(label=f"combination {n}", basis="assumed", reason="slow") for n in range(50))
    found = render(samples.typical(left_out=many))
    part = found[found.index("Combinations that were not measured</h3>") : found.index("Techniques that were not")]
    shown, _, folded = part.partition('<details class="more"><summary>40 more')
    assert [shown.count('scope="row"'), folded.count('scope="row"')] == [10, 40]
    assert "folded: open this list on the page to print it" in folded  # for a print where no script runs
    assert "<details" not in PAGES["typical"][PAGES["typical"].index("Combinations that were not measured") :]


def test_a_check_that_could_not_be_run_has_not_failed() -> None:
    gate = GateRecord(name="accumulation", passed=False, reason="could not be checked: the gradient is zero")
    assert '<td class="st none">not checked</td>' in render(samples.typical(gates=(gate,)))
    assert '<td class="st bad">failed</td>' in PAGES["typical"]


def test_an_axis_that_does_not_start_at_zero_is_named_in_the_caption() -> None:
    sentence = "The vertical axis does not start at zero."
    assert sentence not in PAGES["typical"]
    report = samples.typical()
    rows = tuple(
        row.model_copy(update={"rate_per_s": 400 + row.rate_per_s / 10}) if row.rate_per_s else row
        for row in report.rows
    )
    assert render(report.model_copy(update={"rows": rows})).count(sentence) == 2


def answer_words(report: Report) -> str:
    """Returns the text of the answer."""
    return " ".join(re.sub(r"<[^>]+>", " ", answer(report)).split())


def test_the_gain_has_its_interval_and_the_costs_are_beside_it() -> None:
    found = answer_words(typical())
    assert "Gain 2.58x over the baseline; 95 % interval 2.55 to 2.61" in found
    assert "Throughput 512 samples/s; baseline 198.4" in found
    assert "Peak memory 15.12 GiB 76% of the budget, 20 GiB; baseline 11.42 GiB" in found
    assert "Micro batch × steps 128 × 2 global batch 256" in found


def test_each_changed_knob_is_shown_and_no_other() -> None:
    found = answer_words(typical())
    assert "precision fp32 bf16 compile off default checkpointing off blocks" in found
    assert "throughput 198.4 samples/s 512 samples/s (+158%) peak memory 11.42 GiB 15.12 GiB (+32%)" in found


def test_each_technique_is_explained_below_the_knobs() -> None:
    hostile = StrategyRecord(name="precision", knobs=(), about="<b>computes</b>", cost="nothing", effect="rounding")
    report = typical(strategies=(hostile,))
    found = answer_words(report)
    assert found.endswith("precision: &lt;b&gt;computes&lt;/b&gt;; costs nothing; results differ by rounding")
    assert "results differ" not in answer_words(typical())


def test_the_plan_for_evaluation_is_below_the_answer() -> None:
    assert "Evaluation" not in answer_words(typical())
    found = typical().model_copy(update={"evaluation": ("Use micro batch 512: 9,100 samples/s.", "Budget 4 GiB.")})
    assert answer_words(found).endswith("Evaluation: Use micro batch 512: 9,100 samples/s. Budget 4 GiB.")


def test_without_a_race_the_gain_is_that_of_separate_runs() -> None:
    report = typical()
    best = report.row(1)
    assert best.gain is not None
    row = best.model_copy(update={"gain": best.gain.model_copy(update={"pairs": 0})})
    assert "≈ " in answer_words(report.model_copy(update={"rows": (row, *report.rows[1:])}))


def test_a_baseline_that_does_not_run_has_no_gain() -> None:
    report = typical()
    rows = [row.model_copy(update={"gain": None}) for row in report.rows]
    own = next(place for place, row in enumerate(rows) if row.is_baseline)
    rows[own] = rows[own].model_copy(update={"rate_per_s": None, "peak_bytes": None, "status": "out of memory"})
    found = answer_words(report.model_copy(update={"rows": tuple(rows)}))
    assert "Gain – the baseline was not measured within the budget" in found
    assert "throughput out of memory 512 samples/s" in found


def test_a_baseline_that_is_the_answer_is_not_compared_with_itself() -> None:
    found = answer_words(kept())
    assert "Change none the baseline is the answer" in found
    assert "What changes" not in found


def test_an_answer_without_a_plan_says_so() -> None:
    found = answer_words(infeasible())
    assert "No plan fits the budget. Answer none no plan fits the budget of 20 GiB Memory budget 20 GiB" in found
    assert "lowest estimated peak: 23.5 GiB" in found


def test_the_cause_of_a_search_without_a_plan_is_in_its_tile_and_the_whole_message_below_the_headline() -> None:
    made = infeasible().model_copy(
        update={"cause": "the user's code failed", "failure": "your code failed in forward. Fix it, then tune again."}
    )
    found = answer_words(made)
    assert "Answer none the user's code failed" in html.unescape(found)
    assert "no plan fits" not in found
    assert found.index("Fix it, then tune again.") < found.index("Answer none")


def test_a_changed_global_batch_is_a_row_of_what_changes() -> None:
    assert "samples per optimizer step" not in answer_words(typical())
    report = typical()
    (best,) = [row for row in report.rows if row.role == "recommended"]
    grown = best.model_copy(update={"accumulation_steps": 6})
    rows = tuple(grown if row is best else row for row in report.rows)
    assert "samples per optimizer step 256 768" in answer_words(report.model_copy(update={"rows": rows}))


def test_a_proof_that_contradicts_the_throughput_stands_beside_the_gain() -> None:
    assert "the proof ran" not in answer_words(typical())
    assert "interval 2.55 to 2.61; the proof ran at 210.4 samples/s" in answer_words(typical(proof_rate_per_s=210.4))


def test_trials_are_counted_beside_the_plans() -> None:
    counts = "19 trials of 16 plans: 13 measured, 2 out of memory, 4 skipped, in 3 min 32 s"
    assert f"Search 16 plans {counts}" in answer_words(typical())


def test_the_next_ways_are_links_and_a_plan_without_a_share_of_the_budget_is_no_zero() -> None:
    report = typical()
    page = str(answer(report))
    for anchor in ("apply", "gates", "caveats"):
        assert f'href="#{anchor}"' in page
    assert "less than 1% of the budget, 20 TiB" in answer_words(report.model_copy(update={"budget_bytes": 20 * 2**40}))
    assert "href" not in str(answer(infeasible()))


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (("exact",), "the same"),
        (("exact", "rounding"), "differ by rounding"),
        (("rounding", "changes the result"), "changed"),
    ],
)
def test_what_the_plan_does_to_the_training_results_is_a_row(effects: tuple[Any, ...], expected: str) -> None:
    made = tuple(StrategyRecord(name="s", knobs=("k",), about="", cost="", effect=each) for each in effects)
    assert f"training results unchanged {expected}" in answer_words(typical().model_copy(update={"strategies": made}))
    assert "training results" not in answer_words(typical())


def test_the_phases_of_a_step_are_rows_where_they_were_timed() -> None:
    report = typical()
    phases = {"transfer": 1e-6, "forward": 0.2, "backward": 0.4, "optimizer": 0.1}
    rows = [row.model_copy(update={"phases_s": phases if row.role == "recommended" else {}}) for row in report.rows]
    found = answer_words(report.model_copy(update={"rows": tuple(rows)}))
    assert "one step: forward – 200 ms one step: backward – 400 ms one step: optimizer – 100 ms" in found
    assert "transfer" not in found
    slower = [
        row.model_copy(update={"phases_s": {**phases, "forward": 0.8}}) if row.is_baseline else row for row in rows
    ]
    assert "one step: forward 800 ms 200 ms" in answer_words(report.model_copy(update={"rows": tuple(slower)}))
    assert "one step" not in answer_words(report)


def table(report: Report) -> Any:
    """Returns the table as a tree."""
    text = plans_table(report).replace(" disabled>", ">")  # HTML, not XML
    start = text.index("<table")
    return tree(text[start : text.index("</table>") + 8].replace("<wbr>", ""))


def cell_words(node: Any) -> str:
    return "".join(child.data if child.nodeType == child.TEXT_NODE else cell_words(child) for child in node.childNodes)


def test_each_plan_has_one_row_in_the_order_of_the_report() -> None:
    report = large()
    rows = table(report).getElementsByTagName("tbody")[0].getElementsByTagName("tr")
    assert [row.getAttribute("id") for row in rows] == [f"p{row.rank}" for row in report.rows]


def test_a_row_shows_the_plan_with_its_numbers_or_why_there_are_none() -> None:
    rows = table(typical()).getElementsByTagName("tr")
    assert [cell_words(cell) for cell in rows[1].childNodes] == [
        "1", "128 × 2", "recommended precision=bf16, compile=default, checkpointing=blocks", "512", "2.58x",
        "15.12 GiB", "14.7 GiB", "measured", "6.4 s",
    ]  # fmt: skip
    failed = [cell_words(cell) for cell in rows[-3].childNodes]
    assert failed[3:8] == ["–", "–", "–", "35.9 GiB", "out of memory"]
    assert failed[2].endswith("CUDA out of memory")
    assert rows[-3].childNodes[2].lastChild.getAttribute("class") == "why"


def test_only_a_long_table_scrolls_inside_the_page() -> None:
    assert 'class="scroll plans"' in plans_table(typical())
    assert 'class="scroll plans long"' in plans_table(large())


def test_what_ratios_compare_is_said_once_below_the_table() -> None:
    sentence = "a plan that did not race is compared by its probe"
    found = plans_table(typical())
    assert found.index("</table>") < found.index(sentence)
    assert found.count(sentence) == 1
    assert sentence not in plans_table(typical(race=()))


def test_cells_in_units_carry_the_value_that_they_are_sorted_by() -> None:
    report = typical()
    cells = table(report).getElementsByTagName("tr")[1].childNodes
    assert [cells[5].getAttribute("data-v"), cells[8].getAttribute("data-v")] == [str(report.row(1).peak_bytes), "6.4"]


def test_extreme_ratios_are_short() -> None:
    first, second, *others = typical().rows
    gains = (Ratio(value=1019.65, low=1000.0, high=1040.0), Ratio(value=0.0032, low=0.003, high=0.0035))
    rows = [row.model_copy(update={"gain": gain}) for row, gain in zip((first, second), gains, strict=True)]
    found = table(typical().model_copy(update={"rows": (*rows, *others)})).getElementsByTagName("tr")
    assert [cell_words(row.childNodes[4]) for row in found[1:3]] == ["1,020x", "<0.01x"]


def test_columns_without_any_value_are_left_out() -> None:
    heads = [
        cell_words(cell) for cell in table(infeasible()).getElementsByTagName("thead")[0].getElementsByTagName("button")
    ]
    assert heads == ["#", "Batch", "Plan", "Estimated", "Status", "Took"]
    made = table(infeasible()).getElementsByTagName("tr")
    assert {len(row.childNodes) for row in made} == {len(heads)}
    tokens = typical(unit="tokens")
    assert "Tokens/s" in cell_words(table(tokens).getElementsByTagName("thead")[0])
    assert [cell_words(cell) for cell in table(tokens).getElementsByTagName("tr")[1].childNodes][3] == "512"


def test_the_status_can_be_chosen_with_its_count() -> None:
    controls = plans_table(typical())
    assert '<option value="measured">measured (13)</option>' in controls
    assert 'class="controls" hidden' in controls  # without a script there is nothing to control


def test_a_run_of_an_earlier_search_is_marked_and_still_filtered_by_its_status() -> None:
    report = typical()
    rows = (report.rows[0].model_copy(update={"earlier": True}), *report.rows[1:])
    found = plans_table(report.model_copy(update={"rows": rows}))
    assert '<td class="st ok earlier" data-s="measured">measured, earlier search</td>' in found


def test_hostile_texts_are_cut_and_shown_as_text() -> None:
    found = table(hostile())
    assert not found.getElementsByTagName("script")
    assert max(len(cell_words(cell)) for cell in found.getElementsByTagName("td")) < len(HOSTILE) / 10


def test_a_plan_that_changes_the_batch_alone_is_not_shown_as_the_baseline() -> None:
    found = {
        row.getAttribute("id"): cell_words(row.childNodes[2]).strip()
        for row in table(typical()).getElementsByTagName("tr")
    }
    assert (found["p12"], found["p10"], found["p13"]) == ("baseline", "batch size only", "batch size only")


def test_the_first_click_shows_the_best_first() -> None:
    for report, rate in ((typical(), "Samples/s"), (typical(unit="tokens"), "Tokens/s")):
        heads = table(report).getElementsByTagName("th")
        first = {
            cell_words(head.getElementsByTagName("button")[0]): head.getAttribute("data-first") for head in heads[:9]
        }
        assert [name for name, direction in first.items() if direction == "descending"] == [rate, "Gain"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_click_sorts_in_the_direction_of_the_column_and_the_next_one_turns_it() -> None:
    script = resources.files("autofit.reports").joinpath("assets", "plans.js").read_text(encoding="utf-8")
    sort = script[script.index("  const sort = ") : script.index("  heads.forEach((head, column)")]
    heads = "".join(f"head({first})," for first in ('"descending"', "undefined"))
    page = f"""
      const head = (first) => {{ const at = {{}}; return {{ dataset: {{ sort: "number", first }},
        getAttribute: (name) => at[name] ?? null, setAttribute: (name, value) => (at[name] = value),
        removeAttribute: (name) => delete at[name] }}; }};
      const heads = [{heads}], rows = [2, 3, 1];
      const valueOf = (row) => row;
      const body = {{ append: (...sorted) => console.log(sorted.join("")) }};
      {sort}
      sort(0); sort(0); sort(1); sort(1); sort(0);
    """
    done = subprocess.run(["node", "-e", page], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["321", "123", "123", "321", "321"]


def test_an_estimate_for_all_possible_data_is_labelled_in_its_cell() -> None:
    found = plans_table(bounded())
    label = '20 GiB <div class="why">upper bound (sizes depend on the data)</div></td>'
    assert found.count(label) == found.count("upper bound") == 1


def test_the_answer_is_first_and_the_baseline_beside_it() -> None:
    found = card(record(gain=Ratio(value=2.5, low=2.4, high=2.6, pairs=8)))
    parseString(found.encode())
    assert found.index("Recommended: ") < found.index("2.50x (2.40 to 2.60) of the baseline") < found.index("<table>")
    assert found.index('<th scope="row">recommended</th>') < found.index('<th scope="row">baseline</th>')
    recommended, baseline = (row for row in found.split("<tr>") if 'scope="row"' in row)
    assert "<td>2.50x</td>" in recommended
    assert "<td></td>" in baseline


def test_a_card_has_no_style_script_or_address() -> None:
    found = card(record())
    assert not [text for text in ("<style", "style=", "<script", "href", "src=", "class=") if text in found]


def test_a_baseline_that_is_the_answer_is_shown_once() -> None:
    found = card(record(plan=OWN, gain=None))
    assert "Keep the baseline: " in found
    assert '<th scope="row">baseline</th>' not in found


def test_a_baseline_that_does_not_run_says_why() -> None:
    failed = Outcome(status=Status.OUT_OF_MEMORY, reason="needs more")
    found = card(record(baseline=Candidate(plan=OWN, outcome=failed), gain=None))
    assert "the baseline does not run here" in found
    assert "<td>out of memory</td><td>–</td>" in found


def test_a_baseline_that_was_skipped_was_not_run() -> None:
    skipped = Outcome(status=Status.SKIPPED, reason="needs at least 2 GiB, above the budget of 1 GiB (measured)")
    found = card(record(baseline=Candidate(plan=OWN, outcome=skipped), gain=None))
    assert ": the baseline was not run: needs at least 2 GiB, above the budget of 1 GiB." in found
    assert "<td>not run</td><td>–</td>" in found


def test_an_unknown_gain_is_not_a_baseline_that_does_not_run() -> None:
    assert "its gain over the baseline is unknown" in card(record(gain=None))


def test_few_alternatives_are_shown() -> None:
    others = tuple(Candidate(plan=BEST.replace(micro_batch_size=size), outcome=measured()) for size in range(1, 9))
    assert card(record(alternatives=others)).count('<th scope="row">alternative</th>') == 3


def test_hostile_texts_are_shown_as_text() -> None:
    found = card(record(caveats=("</script><script>alert(1)</script>" + "A" * 10_000,)))
    assert "<script>" not in found
    assert len(found) < 5000


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    found = card(record())
    peaks = re.findall(r"<td>([^<]*)</td></tr>", found)
    assert len(peaks) == 2
    assert all(re.fullmatch("[0-9.]+\u00a0[KMGT]?i?B", peak) for peak in peaks)
    assert re.search("Memory budget: [0-9.]+\u00a0GiB", found)
