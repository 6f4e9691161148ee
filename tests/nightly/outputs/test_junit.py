"""JUnit XML: one test case for each job, valid for the schemas in use, whatever the texts are."""

from xml.etree import ElementTree

import pytest

from autofit.nightly.outputs.facts import MARK
from autofit.nightly.outputs.junit import FILE_CLASS, JOB_CLASS, rendered
from autofit.nightly.result import NightResult
from tests.nightly import samples
from tests.nightly.outputs.junit_rules import broken_rules

YEAR = samples.result(samples.year())


def case(document: str, name: str) -> ElementTree.Element:
    """Returns the test case of a name."""
    return next(one for one in ElementTree.fromstring(document).iter("testcase") if one.get("name") == name)


@pytest.mark.parametrize(
    "night",
    [YEAR, samples.hostile_result(), NightResult(night="x"), samples.result(samples.failing())],
    ids=["year", "hostile", "empty", "failing"],
)
def test_a_document_obeys_the_schemas(night: NightResult) -> None:
    assert broken_rules(rendered(night, {})) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('tests="21"', 'tests="20"'),
        ('hostname="localhost" ', ""),
        ('T01:00:00"', 'T01:00:00+00:00"'),
        ("<system-out>", "<stdout></stdout><system-out>"),
        ('name="gpt"', 'name="gpt "'),
        (' type="regression"', ""),
        ('time="71.400"', 'time="71 s"'),
    ],
)
def test_the_rules_see_a_document_that_breaks_them(old: str, new: str) -> None:
    document = rendered(YEAR, {})
    assert old in document
    assert broken_rules(document.replace(old, new, 1)) != []


def test_each_verdict_has_its_outcome() -> None:
    document = rendered(YEAR, {})
    expected = {"gpt": "failure", "unet": "failure", "t5": "failure", "vit": "error", "whisper": "skipped"}
    expected |= {"llama": "skipped", "clip": "", "bert": "", "error 1": "error"}
    found = {name: "".join(child.tag for child in case(document, name)) for name in expected}
    assert found == expected
    classes = {one.get("classname") for one in ElementTree.fromstring(document).iter("testcase")}
    assert classes == {JOB_CLASS, FILE_CLASS}
    assert case(document, "clip").get("time") == "71.400"


def test_a_failure_has_its_evidence() -> None:
    failure = case(rendered(YEAR, {}), "gpt")[0]
    assert failure.get("type") == "regression"
    assert failure.get("message") == YEAR.records[0].verdict.reason
    lines = (failure.text or "").splitlines()
    assert lines[0] == failure.get("message")
    assert "measured again: 46,580 tokens/s" in lines
    assert "changed since the last steady night: transformers: 5.23.0, was 5.22.1" in lines
    assert "to find the cause: pip install transformers==5.22.1" in lines


def test_jobs_that_were_not_checked_and_errors_of_the_jobs_file_say_why() -> None:
    document = rendered(YEAR, {})
    assert case(document, "llama")[0].get("message") == "the night's time of 2 h was over"
    problem = case(document, "error 1")
    assert (problem.get("classname"), problem[0].get("message")) == (FILE_CLASS, YEAR.problems[0])


def test_characters_that_xml_forbids_are_left_out_or_replaced() -> None:
    bad = "".join(map(chr, (*range(32), 0x7F, 0x85, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF))) + "<&>\"']]>"
    one = YEAR.records[0]
    verdict = one.verdict.model_copy(update={"reason": f"a{bad}b", "bisect": (bad,)})
    night = YEAR.model_copy(update={"records": (one.model_copy(update={"job": bad, "verdict": verdict}),)})
    document = rendered(night, {})
    assert broken_rules(document) == []
    message = ElementTree.fromstring(document).find(".//failure")
    assert message is not None
    assert message.get("message") == "a \ufffd\ufffd\ufffd\ufffd<&>\"']]>b"


def test_a_document_is_recognised_by_its_mark() -> None:
    assert rendered(YEAR, {}).splitlines()[1] == MARK
