"""What every kind of finding keeps: its name, and that looking changes nothing."""

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch

from autofit import plugins
from autofit.core.errors import UsageError
from autofit.core.printable import printable
from autofit.doctor import findings
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from tests.doctor.cases import LEAKS, PAIRS, Case, diagnosed, keeping, observed, of
from tests.outside_members import Watched

each_member = pytest.mark.parametrize("member", findings.members(), ids=lambda member: member.id)
BAD = {**{name: leak.make for name, leak in LEAKS.items()}, **{name: pair.make for name, pair in PAIRS.items()}}
"""Trainings that have something to find."""
SAID = {pair.kind: name for name, pair in PAIRS.items()} | {
    kind: name for name, leak in LEAKS.items() for kind in leak.kinds
}
"""For each kind of finding, a training that has it."""


def bad(name: str) -> Case:
    return BAD[name]() if name in LEAKS else BAD[name](False)


def test_names_are_unique_and_in_kebab_case() -> None:
    names = [member.id for member in findings.members()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z]+)*", name) for name in names)


@each_member
def test_what_it_is_is_a_phrase(member: Detector) -> None:
    assert member.about
    assert member.about == member.about.strip()
    assert not member.about.endswith(".")
    assert member.about[0].islower()
    assert type(member).__doc__


ELSEWHERE = {
    "test_tensors.py": ("float64", "view-holds", "duplicates", "wide-mask"),
    "test_modes.py": ("modes", "checkpoint-no-effect"),
    "test_heavy_module.py": ("heavy-module",),
    "test_plans.py": ("attention-scores", "logits", "optimizer-peak", "padding", "loader"),
    "test_accelerators.py": ("fragmentation", "fp32-products", "launch-bound", "autocast-cache", "cudnn-workspace"),
    "test_waits.py": ("sync", "empty-cache"),
    "test_worker_growth.py": ("worker-growth",),
    "test_recompiles.py": ("recompiles",),
    "test_versions.py": ("versions",),
}
"""Kinds with trainings of their own, by the file in tests/doctor/findings that has them."""


@each_member
def test_each_kind_is_found_somewhere(member: Detector) -> None:
    """A kind that no training has would be untested."""
    if file := next((file for file, kinds in ELSEWHERE.items() if member.id in kinds), None):
        text = Path("tests/doctor/findings", file).read_text(encoding="utf-8")
        assert f'"{member.id}")' in text or type(member).__name__ in text
        return
    found = [finding for finding in diagnosed(bad(SAID[member.id])).findings if finding.id == member.id]
    assert any(not finding.minor for finding in found)


@pytest.fixture(scope="module", params=["adversarial", "evaluation with gradients", "thawed", "hidden state"])
def subject(request: pytest.FixtureRequest) -> tuple[Case, Observation]:
    case = bad(request.param)
    return case, observed(case)


def state(case: Case, observation: Observation) -> list[object]:
    """Returns what a detector might change by accident, so that it can be compared."""
    watch = observation.watch
    columns = (
        watch.events, watch.sizes, watch.kinds, watch.origins, watch.reads, watch.read_by, watch.born, watch.steps,
        watch.sites, watch.forms, watch.initial, watch.levels, watch.nodes, watch.marks, watch.dropped, watch.retained,
    )  # fmt: skip
    parts = [*case.model.parameters(), *case.model.buffers()]
    tensors = [*parts, *(each.grad for each in case.model.parameters() if each.grad is not None), torch.get_rng_state()]
    return [
        *(list(column) for column in columns),
        *(repr(each) for each in (watch.saved, watch.zeroed, watch.calls)),
        *(tensor.tolist() for tensor in tensors),
        *(each.requires_grad for each in parts),
        dict(observation.held),
        dict(observation.grown),
        observation.asked,
    ]


@each_member
def test_looking_changes_nothing(member: Detector, subject: tuple[Case, Observation]) -> None:
    case, observation = subject
    before = state(case, observation)
    first = (member.skipped(observation), [] if member.skipped(observation) else list(member.find(observation)))
    assert state(case, observation) == before
    assert (member.skipped(observation), [] if first[0] else list(member.find(observation))) == first


@each_member
def test_findings_are_whole_sentences_about_their_kind(member: Detector, subject: tuple[Case, Observation]) -> None:
    _, observation = subject
    if reason := member.skipped(observation):
        assert not reason.endswith(".")
        return
    for finding in member.find(observation):
        assert isinstance(finding, Finding)
        assert finding.id == member.id
        for text in (finding.what, finding.remedy):
            assert text == text.strip() == printable(text)
            assert text
            assert not text.endswith(".")
        assert finding.places or finding.size


@each_member
def test_a_training_without_faults_has_no_finding(member: Detector) -> None:
    assert of(diagnosed(keeping("numbers"), detectors=[member]), member.id) == []


def test_some_can_be_chosen_and_others_skipped() -> None:
    assert [member.id for member in findings.chosen(["no-gradient", "grows"])] == ["grows", "no-gradient"]
    assert "grows" not in [member.id for member in findings.chosen(None, ["grows"])]
    assert findings.chosen() == findings.members()


@pytest.mark.parametrize(
    ("only", "skip", "text"),
    [(["shrinks"], [], "'shrinks'"), (None, ["shrinks"], "'shrinks'"), (["grows"], ["grows"], "no kind of finding")],
)
def test_a_wrong_choice_is_answered_with_the_known_ones(only: list[str] | None, skip: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=rf"found .*{text}.*; expected some of .*dead-at-peak"):
        findings.chosen(only, skip)


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package brings a kind of finding."""
    found = EntryPoint("one", f"tests.outside_members:{Watched.__name__}", "autofit.findings")
    monkeypatch.setattr(plugins, "_entries", lambda: EntryPoints((found,)))
    findings.members.cache_clear()
    yield
    findings.members.cache_clear()


@pytest.mark.usefixtures("entry")
def test_a_kind_from_outside_is_looked_for() -> None:
    assert findings.members()[-1].id == "watched"
    assert [member.id for member in findings.chosen(["watched"])] == ["watched"]
    found = diagnosed(keeping("numbers"))
    assert found.checked[-1] == "watched"
    assert [(finding.id, finding.what) for finding in found.findings] == [("watched", "6 steps were watched")]


def test_the_group_is_documented() -> None:
    assert "`autofit.findings`" in " ".join((plugins.__doc__ or "").split())
