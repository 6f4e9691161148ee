"""The page: complete for every report, small, the same every time, and closed to everything from outside."""

import random
import re
import subprocess
import sys
from time import process_time

import pytest

from autofit.core.briefing import GateRecord
from autofit.reports.html.page import render
from autofit.reports.html.parts import CODE
from autofit.reports.report import AnswerTime, LeftOut
from autofit.reports.svg import CHARTS
from tests.reports import samples
from tests.reports.html.page_checks import (
    Reader,
    check_asks_for_nothing,
    check_policy,
    check_well_formed_and_small,
)

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
        assert found.count(chart.aid) == 1


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
    found = PAGES["typical"]
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
    code = "import sys, autofit.reports.html.page, autofit.reports.plots; sys.exit('torch' in sys.modules)"
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
