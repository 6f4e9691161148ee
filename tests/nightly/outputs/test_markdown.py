"""The Markdown of a night: complete, of bounded length, with users' texts as text."""

import re

import pytest

from autofit.nightly.outputs.facts import MARK
from autofit.nightly.outputs.markdown import MOST_LETTERS, of_job, rendered
from autofit.nightly.result import NightResult
from tests.nightly import samples

YEAR = samples.result(samples.year())
FOUND = rendered(YEAR, samples.year())


def test_it_has_the_outcome_the_jobs_and_what_needs_attention() -> None:
    assert FOUND.startswith(f"{MARK}\n# autofit nightly: 2026-11-25 01:00 UTC\n\n**4 of 20 jobs need attention: 2 reg")
    assert "\nOthers: 1 cannot be compared, 1 faster, 13 steady, 1 not checked. Exit code 5.\n" in FOUND
    headings = re.findall(r"^## (.*)$", FOUND, re.MULTILINE)
    expected = ["gpt: regression", "unet: regression", "t5: does not fit", "vit: error", "clip: faster"]
    assert headings == [*expected, "Not checked", "Errors in the jobs file"]
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (\*\*)?([a-z ]+)(?:\*\*)? \|", FOUND, re.MULTILINE)
    assert [row[0] for row in rows if row[0] != "job"][:5] == ["gpt", "unet", "t5", "vit", "whisper"]
    assert {row[2] for row in rows if row[1]} == {"regression", "does not fit", "error"}


def test_a_regression_says_what_changed_since_when_and_how_to_find_the_cause() -> None:
    unet = FOUND[FOUND.index("## unet") : FOUND.index("## t5")]
    assert "The verdict has been the same for 23 nights, since 2026-11-03 01:00 UTC." in unet
    assert "**What changed since the last steady night**\n\n- transformers: 5.23.0, was 5.22.1\n" in unet
    assert "```text\ngit log --oneline --since=2026-11-24 -- train.py\npip install transformers==5.22.1\n" in unet


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    for text in (FOUND, rendered(samples.hostile_result(), samples.hostile())):
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_hostile_texts_stay_text() -> None:
    found = rendered(samples.hostile_result(), samples.hostile())
    outside = re.sub(r"^(```+)text\n.*?\n\1$", "", found, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "\x1b" not in found
    assert "\x00" not in found
    found.encode("utf-8")


@pytest.mark.parametrize("letter", ["@", "<", "`", "x ", "|"])
def test_the_length_is_bounded_and_what_is_missing_is_counted(letter: str) -> None:
    text = letter * 5000
    one = YEAR.records[0]
    verdict = one.verdict.model_copy(update={"reason": text, "changed": (text,) * 90, "bisect": (text,) * 90})
    records = tuple(
        one.model_copy(update={"id": str(number), "job": f"{number} {text}", "verdict": verdict, "notes": (text,) * 90})
        for number in range(300)
    )
    night = NightResult(
        night=text, records=records, problems=(text,) * 300, unchecked={f"{n}{text}": text for n in range(300)},
        notes=(text,) * 300,
    )  # fmt: skip
    found = rendered(night, {})
    assert len(found) <= MOST_LETTERS
    assert re.search(r"^and [0-9]+ more jobs$", found, re.MULTILINE)
    assert re.search(r"^[0-9]+ more sections are left out", found, re.MULTILINE)
    assert len(re.findall(r"^- and [0-9]+ more$", found, re.MULTILINE)) >= 3


def test_one_job_can_be_told_apart_for_a_command_that_is_notified() -> None:
    found = of_job(YEAR.records[0], samples.year())
    assert found.startswith(f"{MARK}\n# gpt: regression\n")
    assert found.endswith("\nNight of 2026-11-25 01:00 UTC.\n")
    assert "pip install transformers==5.22.1" in found
    assert of_job(YEAR.records[0], {}).count("# gpt: regression") == 1


def test_a_night_without_jobs_says_so() -> None:
    assert "**No job was checked.**" in rendered(NightResult(night="x", exit_code=2), {})
