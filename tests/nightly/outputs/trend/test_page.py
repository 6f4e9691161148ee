"""The trend page: complete for every history, small, the same every time, and closed to everything from outside."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from time import process_time

import pytest

from autofit.nightly.outputs.facts import MARK
from autofit.nightly.outputs.trend.index import NAME
from autofit.nightly.outputs.trend.nights import STYLES
from autofit.nightly.outputs.trend.page import rendered
from autofit.nightly.records import NightRecord
from autofit.nightly.result import NightResult
from autofit.reports.frame import style
from tests.nightly import samples
from tests.reports.page_checks import (
    Reader,
    check_asks_for_nothing,
    check_policy,
    check_well_formed_and_small,
)

HISTORIES: Mapping[str, Mapping[str, Sequence[NightRecord]]] = {
    "year": samples.year(), "first": samples.first_night(), "failing": samples.failing(),
    "month": samples.history(30, samples.JOBS[:4]), "hostile": samples.hostile(),
}  # fmt: skip
NIGHTS = {name: samples.result(history) for name, history in HISTORIES.items()} | {"hostile": samples.hostile_result()}
PAGES = {name: rendered(NIGHTS[name], history) for name, history in HISTORIES.items()}
CSS = files("autofit.nightly.outputs.trend").joinpath("trend.css").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_small(name: str) -> None:
    check_well_formed_and_small(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_runs_only_its_own_script(name: str) -> None:
    check_asks_for_nothing(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_admits_exactly_what_is_in_the_page(name: str) -> None:
    check_policy(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_every_link_and_every_name_leads_somewhere(name: str) -> None:
    elements = Reader(PAGES[name]).elements
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    links = {(attributes.get("href") or "").removeprefix("#") for tag, attributes in elements if tag == "a"}
    labels = {attributes["aria-labelledby"] for _, attributes in elements if "aria-labelledby" in attributes}
    assert links | labels <= ids


def test_every_job_has_its_section_and_a_row_in_the_contents() -> None:
    found = PAGES["year"]
    anchors = ["answer", *(f"job-{number}" for number in range(1, 21))]
    assert re.findall(r'<section id="([a-z0-9-]+)"', found) == anchors
    contents = found[found.index("<nav") : found.index("</nav>")]
    assert re.findall(r'href="#([a-z0-9-]+)"', contents) == anchors


def test_each_point_of_a_chart_is_a_row_of_its_table() -> None:
    for section in re.findall(r'<section id="job-.*?</section>', PAGES["year"]):
        count = section[section.index("<tbody>") :].count("<tr>")
        groups = re.findall(r'<g class="tr-nights">(.*?)</g>', section)
        assert [group.count("<path") for group in groups] == [count, count]


def test_a_page_is_recognised_by_its_mark() -> None:
    assert PAGES["first"].startswith(f"<!DOCTYPE html>{MARK}\n<html lang")


def test_hostile_texts_are_text_and_cut() -> None:
    found = PAGES["hostile"]
    assert "alert(1)" in found
    assert "<script>alert" not in found
    assert "<img" not in found
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff\ufffe]", found) is None
    assert max(map(len, re.findall("A+", found))) <= 640
    titles = re.findall(r"<h2 [^>]*>(.*?)</h2>", found)
    assert all(len(re.sub("<wbr>|&[a-z]+;", "", title)) <= NAME for title in titles)


def test_a_night_without_jobs_has_a_page() -> None:
    found = rendered(NightResult(night="x", exit_code=2, problems=("jobs.yaml: not a mapping",)), {})
    assert "No job was checked; 1 error in the jobs file." in found
    assert "exit code 2" in found


def test_the_same_night_makes_the_same_page() -> None:
    assert rendered(NIGHTS["month"], HISTORIES["month"]) == PAGES["month"]


def test_twenty_jobs_of_a_year_take_less_than_a_second_of_the_processor() -> None:
    times = []
    for _ in range(3):
        start = process_time()
        rendered(NIGHTS["year"], HISTORIES["year"])
        times.append(process_time() - start)
    assert min(times) < 1.0


def test_a_page_is_made_without_torch_and_optuna() -> None:
    code = "import sys, autofit.nightly.outputs.trend.page; sys.exit(bool({'torch', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_style_sheet_has_a_shape_for_every_verdict_and_only_colours_of_the_theme() -> None:
    for kind in STYLES.values():
        assert f".{kind}::before" in CSS
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b|rgb\(", CSS)
    known = set(re.findall(r"(--[a-z0-9]+):", style()))
    assert set(re.findall(r"var\((--[a-z0-9]+)", CSS)) <= known


@pytest.mark.parametrize("seed", range(8))
def test_any_values_can_be_drawn(seed: int) -> None:
    import random  # noqa: PLC0415

    noise, records = random.Random(seed), list[NightRecord]()
    for one in samples.year()["gpt"][-noise.choice([1, 2, 40]) :]:
        accepted = one.accepted
        assert accepted is not None
        rate = noise.choice([0.0, 1e-9, 123.0, 1e15, float("nan"), float("inf")])
        figures = accepted.model_copy(update={"rates_per_s": (rate,), "peak_bytes": noise.choice([0, 1, 2**34, 2**60])})
        verdict = one.verdict.model_copy(
            update={
                "kind": noise.choice(list(STYLES)),
                "low_per_s": noise.choice([None, 0.0, -5.0, 1e9, float("nan")]),
                "high_bytes": noise.choice([None, 0, 2**62]),
                "expected_per_s": noise.choice([None, 0.0, 1.0]),
            }
        )
        update = {
            "accepted": noise.choice([figures, None]), "verdict": verdict, "unit": noise.choice(["samples", "tokens"]),
            "budget_bytes": noise.choice([None, 0, 1, 2**50]), "segment": noise.choice([None, one.segment]),
            "night": noise.choice([one.night, "?", ""]), "gain": noise.choice([None, one.gain]),
        }  # fmt: skip
        records.append(one.model_copy(update=update))
    reader = Reader(rendered(NightResult(night=records[-1].night, records=tuple(records[-1:])), {"gpt": records}))
    assert (reader.open, reader.wrong) == ([], [])
