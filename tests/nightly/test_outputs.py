"""The outputs of a night: text, Markdown of bounded length, JSON as the schema says, and the page of all nights."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autofit.core.answer import Ratio
from autofit.core.plan import Plan
from autofit.nightly.outputs import (
    MOST_LETTERS,
    MOST_NIGHTS,
    by_urgency,
    evidence,
    headline,
    markdown_of_job,
    moment,
    other_counts,
    peak,
    plan_words,
    rate,
    rate_change,
    to_html,
    to_json,
    to_markdown,
    to_text,
)
from autofit.nightly.records import NightRecord, NightResult
from autofit.reports.canvas import Canvas
from autofit.reports.markdown import MARK
from autofit.terminal import cells
from scripts.schemas import of_night
from tests.nightly import samples
from tests.reports.page_checks import Reader, check_well_formed_and_small

YEAR = samples.result(samples.year())
BY_NAME = {record.job: record for record in YEAR.records}
TEXT, MARKDOWN = to_text(YEAR, samples.year()), to_markdown(YEAR, samples.year())


def night(*names: str, problems: int = 0, unchecked: int = 0) -> NightResult:
    """Returns a night over some of the jobs."""
    return NightResult(
        night=YEAR.night,
        records=tuple(BY_NAME[name] for name in names),
        problems=("x",) * problems,
        unchecked={f"job {number}": "busy" for number in range(unchecked)},
    )


@pytest.mark.parametrize(
    ("given", "first", "rest"),
    [
        (night("gpt", "unet", "vit", "bert"), "3 of 4 jobs need attention: 2 regressions, 1 failed.", "1 steady"),
        (night("t5", "bert"), "1 of 2 jobs needs attention: 1 does not fit.", "1 steady"),
        (night("gpt"), "The job needs attention: 1 regression.", ""),
        (night("gpt", problems=2), "The job needs attention: 1 regression, 2 errors in the jobs file.", ""),
        (night("clip", "bert", unchecked=1), "None of 3 jobs needs attention.", "1 faster, 1 steady, 1 not checked"),
        (night("bert", problems=1), "The job needs no attention; 1 error in the jobs file.", "1 steady"),
        (night(), "No job was checked.", ""),
        (night(unchecked=2), "No job was checked.", "2 not checked"),
        (night("whisper"), "The job cannot be compared.", "1 cannot be compared"),
        (
            night("whisper", "bert"),
            "No job is known to need attention, and 1 of 2 cannot be compared.",
            "1 cannot be compared, 1 steady",
        ),
    ],
)  # fmt: skip
def test_the_headline_says_what_needs_attention_and_the_rest_is_counted(
    given: NightResult, first: str, rest: str
) -> None:
    assert (headline(given), other_counts(given)) == (first, rest)


def test_problems_come_first_and_otherwise_the_order_is_kept() -> None:
    names = [record.job for record in by_urgency(YEAR.records)]
    assert names[:7] == ["gpt", "unet", "t5", "vit", "whisper", "clip", "bert"]


def test_times_are_in_utc_and_other_texts_as_given() -> None:
    assert (moment("2026-11-25T02:30:00+01:30"), moment("tonight")) == ("2026-11-25 01:00 UTC", "tonight")


def test_figures_are_beside_what_was_expected() -> None:
    gpt = BY_NAME["gpt"]
    assert (rate(gpt), rate_change(gpt), peak(gpt)) == ("46,670 tokens/s", "-5.9%", "14.87 GiB of 20 GiB")
    found = evidence(gpt)
    assert "throughput: 46,670 tokens/s; expected 48,630 to 50,610 by 14 nights" in found
    assert "measured again: 46,580 tokens/s" in found
    assert "peak memory: 14.87 GiB of 20 GiB; expected at most 15.17 GiB" in found
    assert "over the baseline: 1.92x (1.90 to 1.94)" in found
    assert "accepted plan: micro batch 32 x 8 accumulation steps = 256, precision=bf16" in found
    assert found[-1].startswith("device: cuda NVIDIA H100 80GB HBM3, 80 GiB, driver 580.65.06, torch 2.13.0")
    vit = BY_NAME["vit"]
    assert (rate(vit), rate_change(vit), peak(vit), len(evidence(vit))) == ("", "", "", 1)


def test_a_better_plan_says_what_it_gains_and_whether_it_is_accepted() -> None:
    clip = BY_NAME["clip"].model_copy(update={"proposed_gain": Ratio(value=1.1, low=1.08, high=1.12, pairs=6)})
    words = "micro batch 64 x 4 accumulation steps = 256, precision=bf16, compile=default"
    words += ": 1.10x (1.08 to 1.12) of the accepted plan's throughput"
    assert f"better plan: {words}" in evidence(clip)
    assert f"new accepted plan: {words}" in evidence(clip.model_copy(update={"replaced": True}))


@pytest.mark.parametrize(
    "values", [{}, {"precision": "bf16"}, {"micro_batch_size": "many"}, {"micro_batch_size": True}]
)
def test_a_plan_without_a_batch_is_still_in_words(values: dict[str, bool | str]) -> None:
    plan = Plan(values=values)
    assert plan_words(plan, BY_NAME["gpt"]) == str(plan)


def test_a_record_without_anything_measured_has_no_evidence() -> None:
    failed: NightRecord = samples.failing()["gpt"][-1]
    assert evidence(failed) == []


def test_the_outcome_comes_first_and_then_the_jobs_with_problems_first() -> None:
    lines = TEXT.splitlines()
    assert lines[0].startswith("4 of 20 jobs need attention: 2 regressions, 1 does not fit, 1 failed,")
    assert "Night of 2026-11-25 01:00 UTC, exit code 5." in " ".join(lines[:4])
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["Jobs", "verdict", "throughput", "change", "peak", "memory"]
    assert [line.split()[0] for line in table[1:6]] == ["gpt", "unet", "t5", "vit", "whisper"]
    assert table[1].split()[1:] == ["regression", "46,670", "tokens/s", "-5.9%", "14.87", "GiB", "of", "20", "GiB"]


def test_details_are_those_of_jobs_that_need_attention_or_have_a_better_plan() -> None:
    heads = re.findall(r"^([a-z0-9-]+): ([a-z ]+)$", TEXT, re.MULTILINE)
    assert [name for name, _ in heads] == ["gpt", "unet", "t5", "vit", "clip"]
    flat = " ".join(TEXT.split())
    assert "changed since the last steady night: transformers: 5.23.0, was 5.22.1" in flat
    assert "the same verdict for 23 nights, since 2026-11-03 01:00 UTC" in flat
    assert flat.endswith("line 41: found 'fsat' as accept; expected 'propose' or 'auto'")
    assert "Not checked\n  - llama: the night's time of 2 h was over" in TEXT


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_lines_fit_the_width(width: int) -> None:
    lines = to_text(YEAR, samples.year(), Canvas(width)).splitlines()
    assert [line for line in lines if cells(line) > width] == []


def test_colours_only_on_a_canvas_with_colours() -> None:
    assert "\x1b" not in TEXT
    found = to_text(YEAR, samples.year(), Canvas(100, colour=True))
    assert "\x1b[31mgpt: regression\x1b[0m" in found


def test_a_night_without_jobs_is_one_sentence() -> None:
    assert to_text(NightResult(night="x", exit_code=2), {}) == "No job was checked.\nNight of x, exit code 2."
    assert "**No job was checked.**" in to_markdown(NightResult(night="x", exit_code=2), {})


def test_markdown_has_the_outcome_the_jobs_and_what_needs_attention() -> None:
    assert MARKDOWN.startswith(
        f"{MARK}\n# autofit nightly: 2026-11-25 01:00 UTC\n\n**4 of 20 jobs need attention: 2 reg"
    )
    assert "\nOthers: 1 cannot be compared, 1 faster, 13 steady, 1 not checked. Exit code 5.\n" in MARKDOWN
    headings = re.findall(r"^## (.*)$", MARKDOWN, re.MULTILINE)
    expected = ["gpt: regression", "unet: regression", "t5: does not fit", "vit: error", "clip: faster"]
    assert headings == [*expected, "Not checked", "Errors in the jobs file"]
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([a-z ]+) \|", MARKDOWN, re.MULTILINE)
    assert [row[0] for row in rows if row[0] != "job"][:5] == ["gpt", "unet", "t5", "vit", "whisper"]


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    for text in (MARKDOWN, to_markdown(samples.hostile_result(), samples.hostile())):
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_hostile_texts_stay_text_and_are_cut() -> None:
    found = to_markdown(samples.hostile_result(), samples.hostile())
    assert "<script" not in found
    assert "<img" not in found
    found.encode("utf-8")
    for text in (found, to_text(samples.hostile_result(), samples.hostile())):
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text) is None
        assert max(map(len, re.findall("A+", text))) <= 400


@pytest.mark.parametrize("letter", ["@", "<", "`", "x ", "|"])
def test_the_length_is_bounded_and_the_rest_is_named(letter: str) -> None:
    text = letter * 5000
    one = YEAR.records[0]
    verdict = one.verdict.model_copy(update={"reason": text, "changed": (text,) * 90})
    records = tuple(
        one.model_copy(update={"id": str(number), "job": f"{number} {text}", "verdict": verdict, "notes": (text,) * 90})
        for number in range(300)
    )
    night = NightResult(
        night=text, records=records, problems=(text,) * 300, unchecked={f"{n}{text}": text for n in range(300)},
        notes=(text,) * 300,
    )  # fmt: skip
    found = to_markdown(night, {})
    assert len(found) <= MOST_LETTERS
    assert re.search(r"^and [0-9]+ more jobs$", found, re.MULTILINE)
    assert found.endswith("The rest is left out: this text has a maximum length.\n")
    assert "and 290 more" in " ".join(to_text(night, {}).split())


def test_one_job_can_be_told_apart_for_a_command_that_is_notified() -> None:
    record, past = YEAR.records[0], samples.year()["gpt"][:-1]
    found = markdown_of_job(record, past)
    assert found.startswith(f"{MARK}\n# gpt: regression\n")
    assert found.endswith("\nNight of 2026-11-25 01:00 UTC.\n")
    assert "transformers: 5.23.0, was 5.22.1" in found


def test_json_gives_back_an_equal_night() -> None:
    document = json.loads(to_json(YEAR))
    assert document["schema"] == "autofit.nightly/1"
    assert NightResult.model_validate(document) == YEAR


def test_a_night_has_what_the_schema_names_and_nothing_more() -> None:
    schema = of_night()
    seen = set[str]()

    def check(value: Any, about: dict[str, Any]) -> None:
        if "$ref" in about:
            seen.add(name := about["$ref"].rpartition("/")[2])
            about = schema["$defs"][name]
        options = [one for one in about.get("anyOf", ()) if (value is None) == (one.get("type") == "null")]
        if options:
            check(value, options[0])
        if "properties" in about:
            assert set(about["required"]) == set(value) == set(about["properties"])
            assert about["additionalProperties"] is False
            for name, each in value.items():
                check(each, about["properties"][name])
        for each in value if isinstance(value, list) and isinstance(about.get("items"), dict) else []:
            check(each, about["items"])

    check(json.loads(to_json(YEAR)), schema)
    assert {"NightRecord", "Verdict", "Figures", "HistorySegment", "Environment", "Ratio", "Plan"} <= seen


def test_values_that_json_does_not_have_are_replaced() -> None:
    night = samples.hostile_result()
    one = night.records[0]
    verdict = one.verdict.model_copy(update={"expected_per_s": float("nan"), "high_per_s": float("inf")})
    text = to_json(night.model_copy(update={"records": (one.model_copy(update={"verdict": verdict}),)}))
    text.encode("utf-8")
    found = json.loads(text, parse_constant=lambda name: f"not JSON: {name}")["records"][0]
    assert (found["verdict"]["expected_per_s"], found["verdict"]["high_per_s"]) == (None, None)
    assert found["job"].startswith("</script><script>alert(1)</script>")


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
