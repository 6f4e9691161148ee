"""The trend page: complete for every history, without script or network, and with users' texts as text."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from autofit.nightly.outputs import MOST_NIGHTS, to_html
from autofit.nightly.records import NightRecord, NightResult
from autofit.reports.markdown import MARK
from tests.nightly import samples
from tests.reports.page_checks import Reader, check_well_formed_and_small

HISTORIES: Mapping[str, Mapping[str, Sequence[NightRecord]]] = {
    "year": samples.year(), "first": samples.first_night(), "failing": samples.failing(),
    "month": samples.history(30, samples.JOBS[:4]), "hostile": samples.hostile(),
}  # fmt: skip
NIGHTS = {name: samples.result(history) for name, history in HISTORIES.items()} | {"hostile": samples.hostile_result()}
PAGES = {name: to_html(NIGHTS[name], history) for name, history in HISTORIES.items()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_asks_for_nothing(name: str) -> None:
    check_well_formed_and_small(PAGES[name])
    for tag, attributes in Reader(PAGES[name]).elements:
        assert tag not in {"script", "iframe", "object", "embed", "img", "image", "use", "base", "form", "link"}
        assert not [key for key in attributes if key.startswith("on") or key in {"src", "srcset", "action"}]
        assert (attributes.get("href") or "#").startswith("#")
    assert "Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'" in PAGES[name]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_and_every_name_leads_somewhere(name: str) -> None:
    elements = Reader(PAGES[name]).elements
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    links = {(attributes.get("href") or "").removeprefix("#") for tag, attributes in elements if tag == "a"}
    labels = {attributes["aria-labelledby"] for _, attributes in elements if "aria-labelledby" in attributes}
    assert links
    assert links | labels <= ids


def test_every_job_has_a_row_and_a_section_and_the_urgent_ones_come_first() -> None:
    found = PAGES["year"]
    assert re.findall(r'<section id="([a-z0-9-]+)"', found) == [f"job-{number}" for number in range(1, 21)]
    names = re.findall(r'<h2 id="job-\d+-heading">(.*?)</h2>', found)
    assert names[:4] == ["gpt", "unet", "t5", "vit"]
    assert found.count("<svg") == 20


def test_each_night_of_a_chart_is_a_row_of_its_table_and_old_ones_are_counted() -> None:
    section = re.search(r'<section id="job-1".*?</section>', PAGES["year"], re.DOTALL)
    assert section is not None
    assert section[0].count("<circle") == section[0][section[0].index("<tbody>") :].count("<tr>") == MOST_NIGHTS
    assert f"The oldest {samples.NIGHTS - MOST_NIGHTS} nights are left out." in section[0]
    month = re.search(r'<section id="job-1".*?</section>', PAGES["month"], re.DOTALL)
    assert month is not None
    assert month[0].count("<circle") == 30
    assert month[0].count("tr-bad") >= 1
    assert "tr-band" in month[0]


def test_a_job_that_never_ran_has_no_chart() -> None:
    assert "There is no chart: the plan has not run yet." in PAGES["failing"]
    assert "<svg" not in PAGES["failing"]


def test_hostile_texts_are_text_and_cut() -> None:
    found = PAGES["hostile"]
    assert "alert(1)" in found
    assert "<img" not in found
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff\ufffe]", found) is None
    assert max(map(len, re.findall("A+", found))) <= 640


def test_a_night_without_jobs_has_a_page_that_is_recognised_by_its_mark() -> None:
    found = to_html(NightResult(night="x", exit_code=2, problems=("jobs.yaml: not a mapping",)), {})
    assert found.startswith(f"<!DOCTYPE html>\n{MARK}\n")
    assert "No job was checked; 1 error in the jobs file." in found
    assert "exit code 2" in found


def test_the_same_night_makes_the_same_page_with_or_without_it_in_the_history() -> None:
    tonight = {record.id for record in NIGHTS["month"].records}
    history = HISTORIES["month"].items()
    shorter = {job: [record for record in records if record.id not in tonight] for job, records in history}
    assert to_html(NIGHTS["month"], shorter) == to_html(NIGHTS["month"], HISTORIES["month"]) == PAGES["month"]


def test_a_page_is_made_without_torch_and_optuna() -> None:
    code = "import sys, autofit.nightly.outputs; sys.exit(bool({'torch', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
