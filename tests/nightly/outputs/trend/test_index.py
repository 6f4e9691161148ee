"""The beginning of the page: the outcome, the key figures, and every job with its newest verdict."""

import re

from autofit.nightly.outputs.trend.index import index
from autofit.nightly.outputs.trend.jobs import trends
from autofit.nightly.result import NightResult
from tests.nightly import samples

HISTORY = samples.year()
NIGHT = samples.result(HISTORY)
FOUND = index(NIGHT, trends(NIGHT, HISTORY))
ROWS = re.findall(r"<tr>.*?</tr>", FOUND[FOUND.index("<tbody>") :])


def row(name: str) -> str:
    """Returns the row of a job, as markup."""
    return str(next(one for one in ROWS if f">{name}</a>" in one))


def test_the_headline_and_the_key_figures_are_those_of_the_night() -> None:
    headline = "4 of 20 jobs need attention: 2 regressions, 1 does not fit, 1 failed, 1 error in the jobs file."
    assert f'<p class="headline">{headline}</p>' in FOUND
    values = re.findall(r'class="tile-value">([^<]*)<', FOUND)
    assert values == ["4", "14", "19 of 20", "152"]
    assert '<div class="tile bad"><div class="tile-name">Need attention' in FOUND
    assert "<li>jobs.yaml, line 41: found 'fsat' as accept; expected 'propose' or 'auto'</li>" in FOUND


def test_a_night_without_a_problem_is_good() -> None:
    quiet = NightResult(night=NIGHT.night, records=tuple(record for record in NIGHT.records if record.job == "bert"))
    found = index(quiet, trends(quiet, {"bert": HISTORY["bert"]}))
    assert "The job needs no attention." in found
    assert '<div class="tile good"><div class="tile-name">Steady or faster' in found
    assert "all jobs of the jobs file" in found


def test_every_job_has_a_row_that_leads_to_its_section() -> None:
    assert len(ROWS) == 20
    assert re.findall(r'href="#(job-[0-9]+)"', FOUND) == [f"job-{number}" for number in range(1, 21)]
    assert '<a href="#job-1">gpt</a>' in ROWS[0]


def test_a_row_has_verdict_throughput_memory_and_for_how_long() -> None:
    unet = row("unet")
    assert '<td class="v vr">regression</td>' in unet
    assert '<td>220.9 samples/s<span class="aside"> -0.3%</span></td>' in unet
    assert '<td>17.76 GiB<span class="aside"> 89% of 20 GiB</span></td>' in unet
    assert "<td>for 23 nights</td>" in unet
    assert "peak 17.76 GiB, expected at most 16.81 GiB" in unet
    assert 'class="why"' not in row("bert")


def test_a_job_that_was_not_checked_says_why_and_when_it_was_last() -> None:
    llama = row("llama")
    assert "not checked: the night's time of 2 h was over" in llama
    assert 'steady<span class="aside"> 2026-11-24</span>' in llama
    new = NIGHT.model_copy(update={"unchecked": {"new": "busy"}})
    found = index(new, trends(new, HISTORY))
    assert '<th scope="row">new<div class="why">busy</div></th><td class="v vu">not checked</td>' in found


def test_small_charts_end_with_the_mark_of_the_verdict() -> None:
    for name, style in {"gpt": "vr", "vit": "ve", "t5": "vn", "clip": "vf", "whisper": "vc", "bert": "vs"}.items():
        picture = re.search(r"<svg.*?</svg>", row(name))
        assert picture is not None
        assert re.findall(r'class="(v[a-z])"', picture[0]) == [style]
        numbers = [float(text) for text in re.findall(r"[ML]([0-9.]+) ", picture[0])]
        assert max(numbers) <= 140


def test_many_problems_are_counted_after_thirty() -> None:
    many = NIGHT.model_copy(update={"problems": tuple(f"problem {number}" for number in range(100))})
    found = index(many, [])
    assert "<li>and 70 more</li>" in found
    assert found.count("<li>problem") == 30
    assert "<table" not in found
