"""The page of a diagnosis."""

import pytest

from autofit.doctor.diagnosis import Diagnosis, Unchecked
from autofit.doctor.page import render
from tests.doctor.cases import diagnosis_of


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return diagnosis_of("held outputs", False)


def test_a_page_shows_the_findings_the_step_and_the_steps(found: Diagnosis) -> None:
    page = render(found)
    assert found.findings[0].what.partition("`")[2].partition("`")[0] in page
    assert "never read again" in page
    assert "step 6" in page
    assert page.count("<svg") == 2


def test_a_page_loads_nothing_and_escapes_what_it_shows(found: Diagnosis) -> None:
    worse = found.findings[0].model_copy(update={"what": "<script>alert(1)</script>", "minor": False})
    page = render(found.model_copy(update={"target": "<b>", "findings": (worse,)}))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<b>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_what_was_not_checked_has_its_reason(found: Diagnosis) -> None:
    page = render(found.model_copy(update={"unchecked": (Unchecked(id="sync", reason="nothing waits"),)}))
    assert "not checked: nothing waits" in page


def test_a_clean_training_says_so(found: Diagnosis) -> None:
    assert "Nothing was found" in render(found.model_copy(update={"findings": ()}))
