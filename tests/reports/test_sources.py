"""Where a report's records come from: a plan file, a study, or the search itself; an older plan keeps to itself."""

import os
import re
import socket
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.errors import NothingFits, PlanFileError, StudyError
from autofit.reports import sources
from autofit.search.evidence import SearchResult
from autofit.search.request import Request
from tests.recorded import recorded_search


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Path, SearchResult]:
    study, plan = tmp_path / "study.journal", tmp_path / "plan.yaml"
    result = recorded_search(study)
    assert result.answer is not None
    planfile.save(result.answer, plan)
    return study, plan, result


def test_plan_file_study_and_search_give_the_same_records(kept: tuple[Path, Path, SearchResult]) -> None:
    study, plan, result = kept
    by_search, by_study, by_plan = sources.of_result(result), sources.of_name(study), sources.of_name(plan)
    for found in (by_study, by_plan):
        assert found.answer == result.answer
        assert found.evidence == result.evidence
        assert found.trials == by_search.trials
        assert found.missing == ()
        assert (found.environment, found.memory_bytes) == (by_search.environment, by_search.memory_bytes)
    assert by_plan.plan_file == str(plan)


def test_a_newer_search_is_not_mixed_into_an_older_plan(kept: tuple[Path, Path, SearchResult]) -> None:
    study, plan, result = kept
    assert result.answer is not None
    old = result.answer.model_copy(update={"created": "2020-01-01T00:00:00+00:00"})
    planfile.save(old, plan)
    found = sources.of_name(plan)
    assert (found.evidence, found.trials) == (None, ())
    assert found.missing[0].endswith("the study has a newer search")
    assert sources.of_name(study).evidence == result.evidence


def test_trials_of_an_earlier_search_are_marked(tmp_path: Path) -> None:
    study = tmp_path / "study.journal"
    first = recorded_search(study, request=Request(max_trials=3))
    second = recorded_search(study)
    found = sources.of_name(study)
    assert found.evidence == second.evidence
    assert sum(trial.earlier for trial in found.trials) == len(first.trials)
    assert found.answer is not None
    assert second.answer is not None
    assert {c.plan for c in found.answer.alternatives} == {c.plan for c in second.answer.alternatives}


def test_a_plan_whose_study_is_gone_says_so(kept: tuple[Path, Path, SearchResult]) -> None:
    study, plan, result = kept
    study.unlink()
    found = sources.of_name(plan)
    assert (found.answer, found.evidence, found.trials) == (result.answer, None, ())
    assert "plans that were not measured" in found.missing[0]
    assert "found no file" in found.missing[0]


def test_a_study_in_memory_says_so() -> None:
    answer = recorded_search().answer
    assert answer is not None
    assert "it was kept in memory" in sources.of_answer(answer).missing[0]


@pytest.mark.parametrize(
    "study",
    [
        "{scheme}://127.0.0.1:{port}/x",
        "{scheme}://***@127.0.0.1:{port}/x",
        "//127.0.0.1@{port}/share/s.journal",
        "\\\\127.0.0.1@{port}\\share\\s.journal",
    ],
)
def test_a_plan_file_leads_to_no_server(study: str, kept: tuple[Path, Path, SearchResult]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        named = study.format(scheme="postgresql+psycopg", port=server.getsockname()[1])
        found = _with_study(kept, named)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
    assert f"the plan names {named}; expected a file" in found.missing[0]
    assert "`autofit report URL`" in found.missing[0]


def test_a_plan_file_creates_no_database(kept: tuple[Path, Path, SearchResult], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    for study in (f"sqlite:///{tmp_path}/new.db?x=1", str(tmp_path / "new.db"), "new.journal", "bad\0name"):
        assert _with_study(kept, study).trials == ()
    assert sorted(tmp_path.iterdir()) == before


def test_a_study_that_a_plan_names_is_a_regular_file(kept: tuple[Path, Path, SearchResult], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for study, what in (("fifo", "a special file"), ("/dev/zero", "a special file"), (".", "a directory")):
        found = _with_study(kept, study)
        assert (found.trials, what in found.missing[0]) == ((), True), found.missing


def test_a_relative_study_is_beside_the_plan_file(
    kept: tuple[Path, Path, SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert _with_study(kept, kept[0].name).evidence == kept[2].evidence


def _with_study(kept: tuple[Path, Path, SearchResult], study: str) -> sources.Source:
    """Returns the records of the plan file after it was made to name another study."""
    _, plan, result = kept
    assert result.answer is not None
    planfile.save(result.answer.model_copy(update={"study": study}), plan)
    return sources.of_name(plan)


def test_a_study_without_a_feasible_plan_is_read(tmp_path: Path) -> None:
    with pytest.raises(NothingFits):
        recorded_search(tmp_path / "study.journal", memory_bytes=2**20)
    found = sources.of_name(tmp_path / "study.journal")
    assert found.answer is None
    assert found.evidence is not None
    assert found.evidence.failure.startswith("no plan fits into 1 MiB")
    assert found.trials


def test_the_newest_search_is_shown_unless_another_is_named(tmp_path: Path) -> None:
    study = tmp_path / "study.journal"
    first, second = recorded_search(study), recorded_search(study, "mlp")
    assert sources.of_name(study).evidence == second.evidence
    name = f"{first.evidence.environment.workload}-samples"
    assert sources.of_name(study, name).evidence == first.evidence
    with pytest.raises(StudyError, match=rf"has no search 'other'; expected one of {re.escape(name)}, "):
        sources.of_name(study, "other")


def test_the_query_of_a_url_is_not_shown(tmp_path: Path) -> None:
    """Some drivers take a password there."""
    url = f"sqlite:///{tmp_path}/s.db?timeout=7"
    recorded_search(url)
    assert sources.of_name(url).study == f"sqlite:///{tmp_path}/s.db?***"
    with pytest.raises(StudyError, match=re.escape(f"sqlite:///{tmp_path}/s.db?*** has no search 'other'")):
        sources.of_name(url, "other")


def test_what_is_neither_a_plan_nor_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot read the plan file"):
        sources.of_name(tmp_path / "absent.yaml")
    with pytest.raises(StudyError, match="cannot be shown: found no file"):
        sources.of_name(tmp_path / "absent.journal")
    (tmp_path / "new.yaml").write_text("schema: autofit.plan/2\n")
    with pytest.raises(PlanFileError, match=r"found schema autofit\.plan/2, written by a newer autofit"):
        sources.of_name(tmp_path / "new.yaml")
