"""The table of all plans."""

import shutil
import subprocess
from importlib import resources
from typing import Any

import pytest

from autofit.core.recommendation import Ratio
from autofit.reports.html.plans import plans_table
from autofit.reports.report import Report
from tests.reports.samples import HOSTILE, bounded, hostile, infeasible, large, typical
from tests.reports.xml_tree import tree


def table(report: Report) -> Any:
    """Returns the table as a tree."""
    text = plans_table(report).replace(" disabled>", ">")  # HTML, not XML
    start = text.index("<table")
    return tree(text[start : text.index("</table>") + 8].replace("<wbr>", ""))


def words(node: Any) -> str:
    return "".join(child.data if child.nodeType == child.TEXT_NODE else words(child) for child in node.childNodes)


def test_each_plan_has_one_row_in_the_order_of_the_report() -> None:
    report = large()
    rows = table(report).getElementsByTagName("tbody")[0].getElementsByTagName("tr")
    assert [row.getAttribute("id") for row in rows] == [f"p{row.rank}" for row in report.rows]


def test_a_row_shows_the_plan_with_its_numbers_or_why_there_are_none() -> None:
    rows = table(typical()).getElementsByTagName("tr")
    assert [words(cell) for cell in rows[1].childNodes] == [
        "1", "128 × 2", "recommended precision=bf16, compile=default, checkpointing=blocks", "512", "2.58x",
        "15.12 GiB", "14.7 GiB", "measured", "6.4 s",
    ]  # fmt: skip
    failed = [words(cell) for cell in rows[-3].childNodes]
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
    assert [words(row.childNodes[4]) for row in found[1:3]] == ["1,020x", "<0.01x"]


def test_columns_without_any_value_are_left_out() -> None:
    heads = [
        words(cell) for cell in table(infeasible()).getElementsByTagName("thead")[0].getElementsByTagName("button")
    ]
    assert heads == ["#", "Batch", "Plan", "Estimated", "Status", "Took"]
    made = table(infeasible()).getElementsByTagName("tr")
    assert {len(row.childNodes) for row in made} == {len(heads)}
    tokens = typical(unit="tokens")
    assert "Tokens/s" in words(table(tokens).getElementsByTagName("thead")[0])
    assert [words(cell) for cell in table(tokens).getElementsByTagName("tr")[1].childNodes][3] == "512"


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
    assert max(len(words(cell)) for cell in found.getElementsByTagName("td")) < len(HOSTILE) / 10


def test_a_plan_that_changes_the_batch_alone_is_not_shown_as_the_baseline() -> None:
    found = {
        row.getAttribute("id"): words(row.childNodes[2]).strip() for row in table(typical()).getElementsByTagName("tr")
    }
    assert (found["p12"], found["p10"], found["p13"]) == ("baseline", "batch size only", "batch size only")


def test_the_first_click_shows_the_best_first() -> None:
    for report, rate in ((typical(), "Samples/s"), (typical(unit="tokens"), "Tokens/s")):
        heads = table(report).getElementsByTagName("th")
        first = {words(head.getElementsByTagName("button")[0]): head.getAttribute("data-first") for head in heads[:9]}
        assert [name for name, direction in first.items() if direction == "descending"] == [rate, "Gain"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_click_sorts_in_the_direction_of_the_column_and_the_next_one_turns_it() -> None:
    script = resources.files("autofit.reports.html").joinpath("plans.js").read_text(encoding="utf-8")
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
