"""The text of a night for a terminal: within its width, in order, without control characters."""

import re

import pytest

from autofit.nightly.outputs.text import rendered
from autofit.nightly.result import NightResult
from autofit.reports.canvas import Canvas
from autofit.terminal import cells
from tests.nightly import samples

YEAR = samples.result(samples.year())


def test_the_outcome_comes_first_and_then_the_jobs_with_problems_first() -> None:
    lines = rendered(YEAR, samples.year()).splitlines()
    assert lines[0].startswith("4 of 20 jobs need attention: 2 regressions, 1 does not fit, 1 failed,")
    assert "Night of 2026-11-25 01:00 UTC, exit code 5." in " ".join(lines[:4])
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["Jobs", "verdict", "throughput", "change", "peak", "memory"]
    assert [line.split()[0] for line in table[1:6]] == ["gpt", "unet", "t5", "vit", "whisper"]
    assert table[1].split()[1:] == ["regression", "46,670", "tokens/s", "-5.9%", "14.87", "GiB", "of", "20", "GiB"]


def test_details_are_those_of_jobs_that_need_attention_or_have_a_proposal() -> None:
    found = rendered(YEAR, samples.year())
    heads = re.findall(r"^([a-z0-9-]+): ([a-z ]+)$", found, re.MULTILINE)
    assert [name for name, _ in heads] == ["gpt", "unet", "t5", "vit", "clip"]
    assert "  What changed since the last steady night\n    - transformers: 5.23.0, was 5.22.1\n" in found
    assert "  How to find the cause\n    git log --oneline --since=2026-11-24 -- train.py\n" in found
    assert "same verdict for  23 nights, since 2026-11-03 01:00 UTC" in found
    assert found.endswith("line 41: found 'fsat' as accept; expected 'propose' or 'auto'")
    assert "Not checked\n  - llama: the night's time of 2 h was over" in found


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("blocks", [False, True])
def test_lines_fit_the_width(width: int, blocks: bool) -> None:
    lines = rendered(YEAR, samples.year(), Canvas(width, blocks)).splitlines()
    commands = [line for line in lines if line.startswith("    ") and " - " not in line[:8]]
    assert [line for line in lines if cells(line) > width and line not in commands] == []


def test_small_charts_need_block_characters_and_end_with_what_happened() -> None:
    assert "▁" not in rendered(YEAR, samples.year(), Canvas(120))
    lines = rendered(YEAR, samples.year(), Canvas(120, blocks=True)).splitlines()
    charts = {line.split()[0]: line.split()[-1] for line in lines if line.startswith("  ") and line[-1:] in "▁▂▃▄▅▆▇█×"}
    assert len(charts) == 19
    assert charts["gpt"][-1] == "▂"
    assert min(charts["gpt"][:-1]) >= "▅"
    assert charts["vit"][-1] == "×"
    assert len(charts["whisper"]) == 4
    assert len(set(charts["resnet50"])) <= 2  # its noise is small, and it looks so


def test_colours_only_on_a_canvas_with_colours() -> None:
    assert "\x1b" not in rendered(YEAR, samples.year())
    found = rendered(YEAR, samples.year(), Canvas(100, colour=True))
    assert "\x1b[31mgpt: regression\x1b[0m" in found
    assert "\x1b[32mclip: faster\x1b[0m" in found


def test_hostile_texts_have_no_control_characters_and_are_cut() -> None:
    found = rendered(samples.hostile_result(), samples.hostile())
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", found) is None
    assert max(map(len, re.findall("A+", found))) <= 400


def test_a_night_without_jobs_is_one_sentence() -> None:
    assert rendered(NightResult(night="x", exit_code=2), {}) == "No job was checked.\nNight of x, exit code 2."
