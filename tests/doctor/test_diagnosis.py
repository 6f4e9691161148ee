"""The record of a diagnosis, and its text."""

import pytest
from pydantic import ValidationError

from autofit.doctor.diagnosis import Diagnosis, Finding, Place, Size, Unchecked, draw
from autofit.memory.breakdown import Breakdown
from autofit.memory.profile import Profile
from autofit.reports.canvas import Canvas
from tests.doctor.cases import MIB, diagnosed, held_outputs, keeping

HOSTILE = "\x1b[31mred\u202e\n"


@pytest.fixture(scope="module")
def real() -> Diagnosis:
    return diagnosed(held_outputs(False))


def finding(kind: str = "grows", *, minor: bool = False, size: Size | None = None, **more: object) -> Finding:
    texts = {"what": f"what of {kind}", "remedy": f"remedy of {kind}"} | more
    return Finding(id=kind, size=size, minor=minor, **texts)  # type: ignore[arg-type]  # texts


def with_findings(real: Diagnosis, *findings: Finding, **more: object) -> Diagnosis:
    return real.model_copy(update={"findings": findings, **more})


@pytest.mark.parametrize(
    "sizes", [{}, {"peak_bytes": 1, "bytes_per_step": 1}, {"peak_bytes": 1, "host_bytes_per_step": 0}]
)
def test_a_size_has_one_figure(sizes: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="exactly one size"):
        Size(**sizes)  # type: ignore[arg-type]


def test_nothing_is_a_figure_too() -> None:
    assert Size(peak_bytes=0).peak_bytes == 0


def test_it_survives_json(real: Diagnosis) -> None:
    text = real.model_dump_json(by_alias=True)
    assert '"schema":"autofit.doctor/1"' in text
    assert Diagnosis.model_validate_json(text) == real


def test_unknown_fields_and_schemas_are_refused(real: Diagnosis) -> None:
    fields = real.model_dump(by_alias=True)
    with pytest.raises(ValidationError, match="Extra inputs"):
        Diagnosis.model_validate({**fields, "speed": 1})
    with pytest.raises(ValidationError, match="schema"):
        Diagnosis.model_validate({**fields, "schema": "autofit.doctor/2"})


def test_it_cannot_be_changed(real: Diagnosis) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        real.peak_bytes = 1


def test_the_text_says_what_was_watched_and_what_to_change(real: Diagnosis) -> None:
    text = str(real)
    lines = text.splitlines()
    assert lines[0].startswith("case: watched 6 steps on ")
    assert "peak of live tensors 20.19 MiB, in backward: " in " ".join(lines)
    assert " 1  dead-at-peak  3.906 MiB of the peak (19%), replayed" in lines
    assert "To change: Delete it before the peak" in text or "To change: delete it before the peak" in text
    assert f"checked: {len(real.checked)} kinds of findings, nothing found in {len(real.checked) - 1}" in text
    assert not text.endswith("\n")


def test_samples_are_said_if_they_are_known(real: Diagnosis) -> None:
    assert "watched 6 steps of 32 samples on " in str(with_findings(real, samples=32))


def test_a_single_thing_is_not_plural(real: Diagnosis) -> None:
    text = str(with_findings(real, steps=1, samples=1, checked=("grows",)))
    assert "watched 1 step of 1 sample on" in text
    assert "checked: 1 kind of findings" in text


def test_a_loop_that_computes_nothing_has_a_peak_without_a_phase(real: Diagnosis) -> None:
    nothing = Profile.model_construct(breakdown=Breakdown.model_construct(kinds=(), moment="step"))
    assert "\npeak of live tensors 0 B\n" in str(with_findings(real, peak_bytes=0, profile=nothing))


def test_minor_findings_are_counted_and_shown_if_asked(real: Diagnosis) -> None:
    found = with_findings(real, finding("grows"), finding("no-gradient", minor=True))
    assert "no-gradient" not in draw(found)
    assert "minor: 1 (--all shows them)" in draw(found)
    assert " 2  no-gradient" in draw(found, minor=True)
    assert "minor" not in draw(found, minor=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (Size(peak_bytes=MIB), "1 MiB of the peak (5%), replayed"),
        (Size(peak_bytes=MIB, basis="measured", bound="at most"), "at most 1 MiB of the peak (5%), measured"),
        (Size(peak_bytes=0), ""),
        (Size(bytes_per_step=2048), "+2 KiB per step"),
        (Size(host_bytes_per_step=2048), "+2 KiB of main memory per step"),
        (None, ""),
    ],
)
def test_each_size_has_its_words(real: Diagnosis, size: Size | None, text: str) -> None:
    lines = draw(with_findings(real, finding(size=size))).splitlines()
    assert f" 1  grows  {text}".rstrip() in lines


def test_what_was_not_checked_has_a_reason(real: Diagnosis) -> None:
    text = str(real.model_copy(update={"unchecked": (Unchecked(id="saved-unused", reason="of torch.func"),)}))
    assert "not checked, because of torch.func: saved-unused" in text


def test_notes_and_evidence_are_shown(real: Diagnosis) -> None:
    text = draw(with_findings(real, finding(evidence=("It was seen 7 times.",)), notes=("it is compiled",)))
    assert "note: it is compiled" in text
    assert "    It was seen 7 times." in text.splitlines()


def test_lines_fit_the_width(real: Diagnosis) -> None:
    long = with_findings(real, finding(what="word " * 60, remedy="change " * 40), notes=("note " * 40,))
    for width in (40, 80):
        assert max(map(len, draw(long, Canvas(width=width)).splitlines())) <= width


def test_texts_of_the_users_program_cannot_steer_a_terminal(real: Diagnosis) -> None:
    hostile = finding(what=HOSTILE, remedy=HOSTILE, evidence=(HOSTILE,))
    text = draw(with_findings(real, hostile, target=HOSTILE, device_name=HOSTILE, notes=(HOSTILE,)))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_nothing_found_is_said() -> None:
    found = diagnosed(keeping("numbers"))
    text = str(found)
    assert f"checked: {len(found.checked)} kinds of findings, nothing found in {len(found.checked)}" in text
    assert " 1  " not in text


def test_an_empty_observation_can_be_drawn() -> None:
    """No peak and no phases: shares are of at least one byte."""
    breakdown = Breakdown.model_construct(kinds=(), moment="")
    empty = Diagnosis.model_construct(
        target="x", device_name="chip", device_type="cpu", versions={}, samples=None, steps=0, peak_bytes=0,
        budget_bytes=1, profile=Profile.model_construct(breakdown=breakdown), levels=(),
        findings=(finding(size=Size(peak_bytes=5)),), checked=("grows",), unchecked=(), notes=(), duration_s=0.0,
    )  # fmt: skip
    assert "grows  5 B, replayed" in draw(empty)


def test_places_are_empty_by_default() -> None:
    assert Place() == Place(line="", library="", module="", holder="")
