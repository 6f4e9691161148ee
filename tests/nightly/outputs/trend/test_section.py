"""The section of a job: evidence where somebody has to act, a chart, and the values in a table."""

import re

from autofit.nightly.outputs.trend.section import job_section
from tests.nightly import samples
from tests.nightly.outputs.trend.drawn import of, year

HISTORY = samples.year()
FOUND = {name: job_section(trend) for name, trend in year().items()}


def rows(name: str) -> list[list[str]]:
    """Returns the cells of the table of a job."""
    body = FOUND[name][FOUND[name].index("<tbody>") :]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]


def test_a_regression_has_its_evidence_what_changed_and_how_to_find_the_cause() -> None:
    gpt = FOUND["gpt"]
    assert "<strong>Regression: </strong>46,669 tokens/s, expected" in gpt
    for text in (
        "measured again",
        "over the baseline",
        "What changed since the last steady night",
        "How to find the cause",
    ):
        assert text in gpt
    assert "<li>transformers: 5.23.0, was 5.22.1</li>" in gpt
    assert "pip install transformers==5.22.1\nautofit nightly jobs.yaml --job gpt</code>" in gpt
    assert " The same verdict for 23 nights, since <time>2026-11-03</time>." in FOUND["unet"]


def test_a_steady_job_is_a_sentence_and_a_chart() -> None:
    bert = FOUND["bert"]
    assert "<dl" not in bert
    assert "How to find the cause" not in bert
    assert bert.count("<figure>") == 1
    assert bert.count("<svg") == 2


def test_a_proposal_is_shown_with_its_evidence() -> None:
    assert "<dt>proposed plan</dt><dd>micro batch 64 x 4 accumulation steps" in FOUND["clip"]
    assert '<li class="v kp">proposed plan</li>' in FOUND["clip"]


def test_the_key_has_what_the_chart_has_and_nothing_else() -> None:
    names = {name: re.findall(r'<li class="v k?[a-z]+">([^<]*)</li>', text) for name, text in FOUND.items()}
    always = ["noise band of throughput", "limit of memory", "new segment"]
    assert names["gpt"] == ["regression", "cannot compare", "steady", *always]
    assert names["vit"] == ["error", "cannot compare", "steady", *always]
    assert names["resnet50"] == ["cannot compare", "steady", *always, "new plan"]
    assert names["whisper"] == ["cannot compare"]


def test_the_page_says_which_nights_share_a_point() -> None:
    shared = year()["gpt"].shared
    assert shared is not None
    until = shared.last.night[:10]
    assert (
        f"Nights until <time>{until}</time>, which are shaded, are closer together: a point stands for up to"
        in FOUND["gpt"]
    )
    assert "shaded" not in FOUND["whisper"]
    assert "The vertical axis does not start at zero." in FOUND["gpt"]
    assert "are left out" not in "".join(FOUND.values())


def test_segments_are_listed_newest_first() -> None:
    found = re.findall(r"<li>Segment ([0-9]), from <time>[0-9-]+</time>: (.*?)</li>", FOUND["resnet50"])
    assert [number for number, _ in found] == ["4", "3", "2"]
    assert found[1][1].startswith("plan: accumulation_steps=8 micro_batch_size=32 precision=bf16, was accumulation_")
    assert "Segment" not in FOUND["whisper"]


def test_the_table_has_a_row_for_each_entry_newest_first() -> None:
    for name, trend in year().items():
        found = rows(name)
        assert len(found) == len(trend.entries)
        assert {len(row) for row in found} == {7}
    first, *_, last = rows("gpt")
    assert first[:6] == ["2026-11-25", "regression", "46,670", "-5.9%", "14.87 GiB", "1.92x"]
    assert first[6].startswith("46,669 tokens/s, expected")
    assert re.fullmatch(r"2025-11-26 to 11-[0-9]+", last[0])
    assert re.fullmatch(r"median of [0-9]+ nights", last[6])


def test_nights_of_one_day_have_the_time() -> None:
    one = HISTORY["gpt"][-1]
    again = one.model_copy(update={"id": "b", "night": "2026-11-25T13:30:00+00:00"})
    found = job_section(of([HISTORY["gpt"][-2], one, again]))
    assert re.findall(r'<th scope="row">([^<]*)</th>', found) == ["2026-11-25 13:30", "2026-11-25 01:00", "2026-11-24"]


def test_notes_of_a_night_say_what_happened() -> None:
    notes = {row[0]: row[6] for row in rows("resnet50")}
    assert notes["2026-08-02"].startswith("tuned: the verdict is regression; new plan: micro batch 32 x 8")
    assert any("segment 3: plan: accumulation_steps=8" in note for note in notes.values())


def test_a_job_that_never_ran_has_a_table_and_no_chart() -> None:
    found = job_section(of(samples.failing()["gpt"]))
    assert "There is no chart: the plan has not run yet." in found
    assert "<svg" not in found
    assert found.count("<tr>") == 10


def test_oldest_nights_that_are_left_out_are_counted() -> None:
    kinds = [HISTORY["gpt"][-1].verdict, HISTORY["vit"][-1].verdict]
    records = [
        one.model_copy(update={"verdict": kinds[number % 2], "id": str(number)})
        for number, one in enumerate(HISTORY["gpt"] * 2)
    ]
    assert "The oldest 330 nights are left out." in job_section(of(records))
