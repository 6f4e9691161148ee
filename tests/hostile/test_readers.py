"""Whatever a file or a reply holds, its reader returns a valid value or an error of autofit's, in a limited time."""

import json
import math
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autofit import strict_yaml
from autofit.core.errors import AutofitError, StudyError, UsageError, from_record
from autofit.core.printable import redacted
from autofit.nightly.history import History
from autofit.probing.remote.child import ChildEnded
from autofit.reports import sources
from autofit.reports.tables import Column, table
from autofit.search.evidence import CLOSED, evidence_in
from autofit.study import location
from autofit.study.study import read_studies
from tests.hostile.readers import ScriptedChild, reader, refusal

SHORT = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
"""A fixed run of seconds. `python -m tests.hostile.long_run` gives a reader inputs for minutes."""
LIMIT_S = 20.0
NAMES = ("plan", "study", "jobs", "replies")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_valid_is_read(name: str, tmp_path: Path) -> None:
    reader(name).read(reader(name).valid, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_damaged_is_read_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    counts = {"read": 0, "refused": 0}

    @SHORT
    @given(reader(name).damaged)
    def one(data: bytes) -> None:
        began = process_time()
        found = refusal(lambda: reader(name).read(data, tmp_path))
        assert process_time() - began < LIMIT_S
        counts["refused" if found else "read"] += 1

    one()
    assert counts["refused"] > 0
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["plan", "jobs"])
@pytest.mark.parametrize(
    "text",
    [
        'schema: "\\UFFFFFFFF"\n',  # an escape that is no character, and not even an integer of C
        "schema: " + "[" * 20_000,
        "schema: " + "{a: " * 20_000,
        "a: &a [x]\n" + "".join(f"b{n}: &a [*a, *a]\n" for n in range(40)),
        'schema: !!python/object/apply:os.system ["touch executed"]\n',
        "schema: " + "9" * 5_000,
        "[" + "0, " * 5_000 + "0]",
        "? " * 20_000,
        "\0",
    ],
    ids=["escape", "lists", "mappings", "bomb", "tag", "digits", "values", "keys", "nul"],
)
def test_yaml_that_harms_other_readers_is_refused(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(strict_yaml, "MAX_NODES", 4_000)
    began = process_time()
    assert re.search("[Cc]orrect it|Create the file again", refusal(lambda: reader(name).read(text.encode(), tmp_path)))
    assert process_time() - began < LIMIT_S
    assert not (tmp_path / "executed").exists()


def test_the_errors_of_yaml_are_listed() -> None:
    for text in ("[", '"\\UFFFFFFFF"', '"\\U00110000"', "[" * 100_000):
        with pytest.raises(strict_yaml.UNREADABLE):
            strict_yaml.load(text)


def test_a_long_text_of_a_jobs_file_is_shown_soon(tmp_path: Path) -> None:
    job = b"jobs: [{name: a, workload: a.py, plan: a.yaml}]\n"
    for text in (b"a://" * 100_000, b"-eyJaaaaaaaaa" * 40_000):
        began = process_time()
        with pytest.raises(UsageError, match="`time`: found"):
            reader("jobs").read(b"schema: autofit.jobs/1\n" + job + b"time: '" + text + b"'\n", tmp_path)
        assert process_time() - began < LIMIT_S


def test_secrets_are_still_found_in_long_texts() -> None:
    noise = "a://" * 5_000
    assert "hunter2" not in redacted(f"{noise} postgresql://me@host/d?password=hunter2 {noise}")
    assert "payload" not in redacted(f"-eyJhbGciOiJIUzI1NiJ9.{'payload' * 500}.signature")


def test_a_table_measures_each_text_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, lines = list[str](), Column.lines

    def counted(column: Column, text: str) -> list[str]:
        measured.append(text)
        return lines(column, text)

    monkeypatch.setattr(Column, "lines", counted)
    columns = [Column("a", ["x"] * 300), Column("b", ["one two"] + ["one"] * 299, most=5)]
    assert len(table(columns, 80)) > 300
    assert 0 < measured.count("one two") < 10


def study_of(tmp_path: Path, pattern: str, new: str) -> Path:
    """Writes the journal of a search with each match of a pattern replaced."""
    data = reader("study").valid.decode()
    assert re.search(pattern, data)
    path = tmp_path / "study.journal"
    path.write_text(re.sub(pattern, lambda found: found[1] + new, data))
    return path


def test_evidence_of_endless_parts_is_left_out(tmp_path: Path) -> None:
    path = study_of(tmp_path, r'("parts":)\d+', "999999999999999999")
    (study, *_) = read_studies(path)
    assert evidence_in(study.notes, CLOSED) is None
    reader("study").read(path.read_bytes(), tmp_path)


@pytest.mark.parametrize("figure", ["at_s", "duration_s", "rate_per_s", "value", "judged_bytes"])
@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "-1", "0", "1e308"])
def test_a_study_of_impossible_figures_is_shown_without_them(tmp_path: Path, figure: str, value: str) -> None:
    path = study_of(tmp_path, rf'(\\"{figure}\\": ?)-?[\d.]+(?:e-?\d+)?', value)
    reader("study").read(path.read_bytes(), tmp_path)


@pytest.mark.parametrize("value", ["0", "-1", "1e-320", "1e308", "NaN"])
def test_a_study_of_impossible_times_is_shown_without_them(tmp_path: Path, value: str) -> None:
    path = study_of(tmp_path, r'(\\"step_times_s\\": ?\[)[^\]]*', value)
    reader("study").read(path.read_bytes(), tmp_path)


def test_a_trial_without_a_time_zone_is_unreadable(tmp_path: Path) -> None:
    path = study_of(tmp_path, r'(\\"started\\": ?\\"[\dT:.-]{19,26})(?:Z|\+00:00)', "")
    found = read_studies(path)
    assert sum(each.unreadable for each in found) > 0
    with pytest.raises(StudyError, match="no finished trial"):
        sources.of_study(path)


def test_a_plan_of_the_end_of_time_has_a_report(tmp_path: Path) -> None:
    valid = reader("plan").valid.decode()
    for created, duration_s in (("9999-12-31T23:59:59+00:00", 1e29), ("0001-01-01T00:00:00", 1.0)):
        text = re.sub(r"(?m)^created: .*$", f"created: '{created}'", valid)
        text = re.sub(r"(?m)^duration_s: .*$", f"duration_s: {duration_s:.1f}", text)
        (tmp_path / "study.journal").write_bytes(reader("study").valid)
        reader("plan").read(text.encode(), tmp_path)


def test_a_journal_of_too_many_values_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.journal"
    path.write_bytes(b'{"op_code":0,"x":[' + b"[]," * 3_000 + b"[]]}\n")
    monkeypatch.setattr(location, "MOST_VALUES", 3_002)
    with pytest.raises(StudyError, match="found a file of more than 3,002 values"):
        read_studies(path)
    monkeypatch.setattr(location, "MOST_VALUES", 3_003)
    with pytest.raises(StudyError, match="could not be read"):
        read_studies(path)


def test_the_mark_of_a_night_is_not_read_whole(tmp_path: Path) -> None:
    mark = tmp_path / "jobs.yaml.night"
    history = History(tmp_path / "study.journal", mark)
    mark.write_text(datetime.now(UTC).isoformat())
    assert history.unfinished_night()
    mark.write_text(datetime.now(UTC).isoformat() + " " * 2**20)
    assert history.unfinished_night() is None
    mark.unlink()
    os.mkfifo(mark)  # to which nobody writes
    assert history.unfinished_night() is None


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"kind":' * 100_000, b'{"kind": {}}', b"1" * 10_000, b"\xff"])
def test_a_reply_that_cannot_be_read_ends_the_child(line: bytes) -> None:
    child = ScriptedChild(line + b"\n")
    with pytest.raises(ChildEnded, match="sent no valid reply"):
        child.ask({})
    assert child.ended


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"kind": "briefing", "briefing": ', '{"kind": "briefing", "other": '),
        ('"libraries": ["json"]', '"libraries": 5'),
        ('"libraries": ["json"]', '"libraries": [["a"]]'),
        ('"parts": [', '"parts": 3, "x": ['),
        ('"parts": [{"name"', '"parts": [{"other"'),
        ('"type": "UserCodeError"', '"type": "Untraceable"'),
        ('"type": "UserCodeError"', '"type": "Mapping"'),
        ('"phase": "step"', f'"phase": "{"x" * 100_000}"'),
    ],
    ids=["briefing", "libraries", "names", "parts", "part", "untraceable", "mapping", "phase"],
)
def test_a_reply_of_another_form_is_an_error_of_autofits(old: str, new: str, tmp_path: Path) -> None:
    data = reader("replies").valid.decode()
    assert old in data
    refusal(lambda: reader("replies").read(data.replace(old, new).encode(), tmp_path))


def test_an_error_of_another_process_has_a_message() -> None:
    error = from_record({"type": "Untraceable", "message": "it cannot be traced"})
    assert (type(error), str(error)) == (UsageError, "it cannot be traced")
    assert str(from_record({}))
    assert type(from_record({"type": "Any"})) is AutofitError


def test_a_long_phase_is_cut() -> None:
    phases = list[str]()
    child = ScriptedChild(json.dumps({"kind": "beat", "phase": "x" * 10**6}).encode() + b'\n{"kind": "closed"}\n')
    assert child.ask({}, phases.append, math.inf)["kind"] == "closed"
    assert len(phases[0]) < 1000
    child.kill()


@SHORT
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for name in ("plan", "jobs"):
        assert refusal(lambda name=name: reader(name).read(data, tmp_path_factory.getbasetemp()))  # type: ignore[misc]
