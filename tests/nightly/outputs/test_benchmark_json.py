"""The lists for github-action-benchmark: its format, one value for each job that ran, and no mixed devices."""

import json
import re
from statistics import median

from autofit.nightly.outputs.benchmark_json import rendered, rendered_memory
from autofit.nightly.result import NightResult
from tests.nightly import samples

YEAR = samples.result(samples.year())
RANGE = re.compile(r"(?P<prefix>(\+-|±)\s*)(?P<value>\d.+)")
"""How the action reads a range (src/extractRangeInfo.ts)."""


def test_a_list_has_the_format_of_the_action() -> None:
    for text in (rendered(YEAR, {}), rendered_memory(YEAR, {})):
        entries = json.loads(text)
        assert [set(entry) - {"range"} for entry in entries] == [{"name", "unit", "value", "extra"}] * 17
        assert all(isinstance(entry["value"], int | float) and entry["value"] > 0 for entry in entries)
        assert len({entry["name"] for entry in entries}) == 17


def test_throughput_is_the_median_and_its_range_half_the_spread_of_the_blocks() -> None:
    entry, figures = json.loads(rendered(YEAR, {}))[0], YEAR.records[0].accepted
    assert figures is not None
    assert (entry["name"], entry["unit"]) == ("gpt on NVIDIA H100 80GB HBM3: throughput", "tokens/s")
    assert entry["value"] == median(figures.rates_per_s)
    read = RANGE.match(entry["range"])
    assert read is not None
    spread = max(figures.rates_per_s) - min(figures.rates_per_s)
    assert abs(float(read["value"]) - spread / 2) < 1e-3 * spread


def test_memory_is_in_mebibytes() -> None:
    entry, figures = json.loads(rendered_memory(YEAR, {}))[0], YEAR.records[0].accepted
    assert figures is not None
    assert (entry["name"], entry["unit"]) == ("gpt on NVIDIA H100 80GB HBM3: peak memory", "MiB")
    assert entry["value"] == figures.peak_bytes / 2**20


def test_another_device_has_another_name_and_another_driver_the_same() -> None:
    one = YEAR.records[0]
    assert one.environment is not None
    names = set()
    for update in ({}, {"device_name": "NVIDIA B200"}, {"versions": {"driver": "600.1"}}):
        place = one.environment.model_copy(update=update)
        night = YEAR.model_copy(update={"records": (one.model_copy(update={"environment": place}),)})
        names.add(json.loads(rendered(night, {}))[0]["name"])
    assert len(names) == 2


def test_the_tooltip_says_verdict_plan_and_device() -> None:
    lines = json.loads(rendered(YEAR, {}))[0]["extra"].splitlines()
    assert lines[0].startswith("regression: 46,669 tokens/s, expected ")
    assert lines[1] == "-5.9% against what was expected"
    assert lines[2].startswith("micro batch 32 x 8 accumulation steps = 256")
    assert lines[3].endswith("driver 580.65.06, torch 2.13.0+cu130")


def test_a_job_that_did_not_run_or_has_no_number_has_no_entry() -> None:
    names = [entry["name"].split(" on ")[0] for entry in json.loads(rendered(YEAR, {}))]
    assert "gpt" in names
    assert not {"vit", "t5", "llama"} & set(names)
    one = YEAR.records[0]
    assert one.accepted is not None
    broken = one.model_copy(update={"accepted": one.accepted.model_copy(update={"rates_per_s": (float("nan"),)})})
    assert json.loads(rendered(YEAR.model_copy(update={"records": (broken,)}), {})) == []
    assert json.loads(rendered(NightResult(night="x"), {})) == []


def test_hostile_texts_are_cut_and_without_control_characters() -> None:
    text = rendered(samples.hostile_result(), samples.hostile())
    entries = json.loads(text)
    assert all(len(entry["name"]) < 300 and len(entry["extra"]) < 1300 for entry in entries)
    assert "\x1b" not in "".join(entry["name"] + entry["extra"] + entry["unit"] for entry in entries)
