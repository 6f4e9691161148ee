"""The what-if page: it holds the laws, a table of peaks and every device, and loads and runs nothing else."""

import json
import re

from autofit.estimation.estimate import estimate
from autofit.estimation.estimation import Estimation
from autofit.estimation.page import LENGTHS, render
from tests.estimation.traces import MIB, briefing, trace_of
from tests.reports.samples import HOSTILE


def found() -> Estimation:
    return estimate(briefing(1000 * MIB), trace_of, "train.py:make", with_laws=True)


def test_the_page_has_the_laws_a_table_of_peaks_and_every_device() -> None:
    page = render(found())
    data = json.loads(re.findall(r'<script id="laws" type="application/json">(.*?)</script>', page)[0])
    assert len(data["laws"]) == len(found().laws)
    assert data["budgets"][0] == 1000 * MIB
    assert len(data["budgets"]) == page.count("<option") - 2  # and two choices
    assert "bf16, 4 blocks to checkpoint" in page
    assert LENGTHS in page
    assert not re.findall(r'(?:src|href)="https?:', page)


def test_texts_of_the_users_code_run_nothing() -> None:
    page = render(found().model_copy(update={"target": HOSTILE, "caveats": (HOSTILE,)}))
    assert "<img" not in page
    assert page.count("<script") == 2


def test_sequence_lengths_have_a_slider_that_stops_where_plans_were_traced() -> None:
    given = briefing(1000 * MIB).model_copy(update={"sequence_length": 32})
    estimation = estimate(given, trace_of, "train.py:make", with_laws=True, at_length=lambda length: trace_of)
    page = render(estimation)
    data = json.loads(re.findall(r'<script id="laws" type="application/json">(.*?)</script>', page)[0])
    assert (data["lengths"], data["length"]) == ([16, 32, 64], 1)
    assert [each["length"] for each in data["laws"]].count(0) == len(data["laws"]) // 3
    assert re.search(r'<input id="length" type="range" min="0" max="2"', page)
    assert "bf16, 4 blocks to checkpoint, length 64" in page
    assert LENGTHS not in page
    assert 'id="length"' not in render(found())
