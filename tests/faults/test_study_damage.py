"""Rows of the fault matrix about what is on disk: F53, F54, F57, F58, F60."""

import os
import random
import resource
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import autofit
from autofit import planfile
from autofit.core.environment import Environment
from autofit.core.errors import StorageError, StudyError
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.search.request import Event
from autofit.study import read_studies
from tests.digests import digest_of
from tests.probing import targets
from tests.study.samples import HERE, PLAN, failed, measured, reopen, run
from tests.test_planfile import RECORD

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.fault("F53")
def test_f53_a_journal_cut_at_any_byte_is_gone_on_with(journal: Path) -> None:
    run(journal, measured())
    run(journal, failed(Status.OUT_OF_MEMORY))
    whole = journal.read_bytes()
    last_line = len(whole) - len(whole.splitlines(keepends=True)[-1])
    for cut in (*range(0, last_line, 97), *range(last_line, len(whole), 13), len(whole) - 1):
        journal.write_bytes(whole[:cut])
        study = reopen(journal)
        known = len(study.earlier())
        study.finish(study.begin(PLAN, Purpose.PROBE), measured())
        assert len(reopen(journal).earlier()) == known + 1
        torn = cut > 0 and not whole[:cut].endswith(b"\n")
        assert len([note for note in study.notes if "was incomplete" in note]) == torn


@pytest.mark.fault("F53")
def test_f53_flipped_bits_lose_a_trial_or_are_refused_and_nothing_is_changed(journal: Path) -> None:
    run(journal, measured())
    run(journal, failed(Status.OUT_OF_MEMORY))
    known = {trial.number: (trial.plan, trial.outcome) for trial in reopen(journal).earlier()}
    whole, chance, refused, left_out = journal.read_bytes(), random.Random(0), 0, 0
    for _ in range(600):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole) - 1)] ^= 1 << chance.randrange(8)
        journal.write_bytes(damaged)
        study = None
        with suppress(StudyError):
            study = reopen(journal)
        if study is None:
            refused += 1
            assert journal.read_bytes() == damaged
        else:
            left_out += len(study.earlier()) < 2
            assert len(study.earlier()) == 2 or study.notes, "what is left out is said"
            for trial in study.earlier():
                assert (trial.plan, trial.outcome) == known[trial.number], "no value has changed"
    assert refused > 20
    assert left_out > 20


@pytest.fixture
def full_disk() -> Any:
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(path: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, kept[1]))  # what a full disk is

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, kept)


@pytest.mark.slow
@pytest.mark.fault("F54")
@pytest.mark.parametrize("after", [1, 2])
def test_f54_a_disk_that_fills_in_a_search_leaves_no_trace_and_the_study_is_gone_on_with(
    after: int, tmp_path: Path, full_disk: Any
) -> None:
    path, trials = tmp_path / "s.journal", list[str]()

    def listen(event: Event) -> None:
        trials.extend([event.text] if event.kind == "trial" else [])
        if len(trials) == after:
            full_disk(path)

    def tune(**more: Any) -> autofit.Fit:
        return autofit.tune(
            model, targets.vectors(), device="cpu", memory_budget="64MiB", time_budget=20.0, study=path,
            strategies=("batching",), global_batch_size=32, **more,
        )  # fmt: skip

    model = targets.mlp()
    before, threads = digest_of(model), torch.get_num_threads()
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(StorageError, match="free space, then run again: earlier records are kept"):
        tune(progress=listen)
    resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert (digest_of(model), torch.get_num_threads()) == (before, threads)
    assert os.listdir(tmp_path) == ["s.journal"]
    events = list[Event]()
    assert tune(progress=events.append).proof.proven
    assert any("known from earlier runs" in event.text for event in events), "the trial that ended before is kept"


OTHER: dict[str, Any] = {
    "workload": "abd",
    "device_name": "another chip",
    "capacity_bytes": 2**35,
    "threads": 3,
    "versions": {"torch": "2.13.1"},
    "settings": {"optimizer": "SGD"},
}


@pytest.mark.fault("F57")
@pytest.mark.parametrize("name", OTHER)
def test_f57_what_was_measured_under_other_conditions_is_left_out_and_says_which(name: str, journal: Path) -> None:
    run(journal, measured(), environment=HERE.model_copy(update={name: OTHER[name]}))
    run(journal, measured(), environment=HERE.model_copy(update={"versions": {**HERE.versions, "driver": "570.1"}}))
    run(journal, measured())
    study = reopen(journal)
    assert [trial.number for trial in study.earlier()] == [2]
    said = {"versions": "torch: 2.13.0, was 2.13.1", "settings": "optimizer"}.get(name, name.partition("_")[0])
    assert any("of another environment left out" in note and said in note for note in study.notes), study.notes
    assert any("driver" in note for note in study.notes)


@pytest.mark.fault("F57")
def test_f57_each_condition_of_a_measurement_is_tried() -> None:
    assert {*OTHER, "device_type"} == set(Environment.model_fields)  # of another type, all else differs too


@pytest.mark.fault("F58")
def test_f58_files_that_the_first_schemas_were_written_with_are_read(tmp_path: Path) -> None:
    """Files of this repository's first schemas: whoever changes a record has to go on reading them."""
    path = Path(shutil.copy(DATA / "study_1.journal", tmp_path / "s.journal"))
    path.chmod(0o600)
    assert [trial.outcome for trial in reopen(path).earlier()] == [measured(), failed(Status.OUT_OF_MEMORY)]
    (study,) = read_studies(path)
    assert (len(study.trials), study.unreadable) == (2, 0)
    assert planfile.load(DATA / "plan_1.yaml") == RECORD


@pytest.mark.fault("F60")
def test_f60_a_default_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".autofit"
    folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(folder, 4321, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(StudyError, match="found a directory of another user"):
        reopen(folder / "study.journal")
    assert list(folder.iterdir()) == []


@pytest.mark.fault("F60")
def test_f60_a_study_of_ones_own_in_a_directory_of_the_administrators_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid)
    run(tmp_path / ".autofit" / "study.journal", measured())
    assert stat.S_IMODE((tmp_path / ".autofit").stat().st_mode) == 0o700
