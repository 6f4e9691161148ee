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
