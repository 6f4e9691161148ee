"""Where a report gets its records: a plan file, a study, or a search that has just ended. Nothing is changed there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from autofit import planfile
from autofit import study as studies_of
from autofit.core.answer import Answer
from autofit.core.environment import Environment
from autofit.core.errors import AutofitError, StudyError, UsageError
from autofit.core.printable import redacted
from autofit.core.trial import Trial
from autofit.reports.sentences import instant
from autofit.search.evidence import CLOSED, OPENED, SearchEvidence, SearchResult, evidence_in
from autofit.study.location import NETWORK, is_storage

if TYPE_CHECKING:
    from autofit.study.study import ReadStudy

_MEMORY = "memory"
"""How an answer names a study that was kept in memory."""


@dataclass(frozen=True, slots=True)
class Source:
    """The records of one search. At least one of `answer`, `evidence` and `trials` (oldest first) is there.

    Attributes:
        memory_bytes: memory budget.
        study: where the trials are kept, without passwords.
        plan_file: path of the plan file, or "".
        missing: what could not be found, each with the reason.
    """

    answer: Answer | None
    evidence: SearchEvidence | None
    trials: tuple[Trial, ...]
    environment: Environment
    memory_bytes: int
    study: str = ""
    plan_file: str = ""
    missing: tuple[str, ...] = ()


def of_name(given: str | Path, name: str | None = None) -> Source:
    """Returns the records of a plan file, or of a study (path or storage URL): of the search of a name, or the newest.

    Raises:
        PlanFileError: the plan file is missing, damaged, or of another schema.
        StudyError: the study cannot be read, has no such search, or has no finished trial.
        UsageError: a plan file is given together with a name.
    """
    if "://" in str(given) or _is_study(Path(given)):
        return of_study(given, name)
    if name is not None and Path(given).is_file():
        raise UsageError(
            f"found a name ({name!r}) with the plan file {given}; expected a study, because --name selects a "
            "search of a study. Leave the name out, or name the study instead of the plan file."
        )
    if name is not None:
        return of_study(given, name)
    return of_answer(planfile.load(given), str(given))


def of_result(found: SearchResult, plan_file: str = "") -> Source:
    """Returns the records of a search that has just ended."""
    evidence = found.evidence
    return Source(
        answer=found.answer,
        evidence=evidence,
        trials=found.trials,
        environment=evidence.environment,
        memory_bytes=evidence.budget.memory_bytes,
        study="" if found.answer is None else found.answer.study,
        plan_file=plan_file,
    )


def of_answer(answer: Answer, plan_file: str = "") -> Source:
    """Returns an answer with the trials and the evidence that its study still has.

    The study is looked for on this machine only: a plan file may be a stranger's.
    """
    r, trials, evidence, missing = answer, tuple[Trial, ...](), None, ""
    try:
        study = _study_of(r, plan_file)
        evidence = None if study is None else evidence_in(study.notes, CLOSED)
        if evidence is not None and not evidence.supports(r):
            evidence, missing = None, "the study has a newer search"
        elif evidence is None:
            missing = "the study does not have them"
        until = _shifted(_time(r.created), 1)
        began = _shifted(until, -r.duration_s - 1) if evidence is None else _time(evidence.began)
        trials = _trials(study, r.environment, r.budget.memory_bytes, began, until)
    except AutofitError as error:
        missing = f"the study cannot be read: {error}"
    parts = "estimates, rounds of the race, memory over a step, gates and combinations that were not measured"
    return Source(
        answer=r,
        evidence=evidence,
        trials=trials,
        environment=r.environment,
        memory_bytes=r.budget.memory_bytes,
        study=r.study,
        plan_file=plan_file,
        missing=(f"{parts if trials else f'plans that were not measured, {parts}'}: {missing}",) if missing else (),
    )


def of_study(location: str | Path, name: str | None = None) -> Source:
    """Returns the newest search of a study, or that of a name.

    Raises:
        StudyError: as for `of_name`.
    """
    chosen = _chosen(studies_of.read_studies(location), location, name)
    newest = chosen.trials[-1].start
    # The last search: its end, or its beginning if it did not end.
    known = [each for note in (OPENED, CLOSED) if (each := evidence_in(chosen.notes, note)) is not None]
    evidence = max(known, key=lambda each: (each.began, bool(each.stopped or each.failure)), default=None)
    missing = "" if evidence is not None else "the study does not have them"
    if evidence is not None and not evidence.stopped and not evidence.failure:
        missing = "the search did not end: it was stopped, its process died, or it still runs"
    environment = newest.environment if evidence is None else evidence.environment
    memory_bytes = newest.memory_bytes if evidence is None else evidence.budget.memory_bytes
    began = datetime.min.replace(tzinfo=UTC) if evidence is None else _time(evidence.began)
    trials = _trials(chosen, environment, memory_bytes, began, datetime.max.replace(tzinfo=UTC))
    return Source(
        answer=None if evidence is None else evidence.whole_answer(trials),
        evidence=evidence,
        trials=trials,
        environment=environment,
        memory_bytes=memory_bytes,
        study=redacted(os.fspath(location)),
        missing=(f"the answer, the race and the estimates: {missing}",) if missing else (),
    )


def _chosen(studies: Sequence["ReadStudy"], location: str | Path, name: str | None) -> "ReadStudy":
    """Returns the study of a name, or the one with the newest trial; raises StudyError if there is none."""
    named = [study for study in studies if name is None or study.name == name]
    if not named:
        known = ", ".join(study.name for study in studies)
        raise StudyError(
            f"{redacted(os.fspath(location))} has no search {name!r}; expected one of {known}. Give its name."
        )
    tried = [study for study in named if study.trials]
    if not tried:
        raise StudyError(
            f"{redacted(os.fspath(location))} has no finished trial; expected at least one. Run `autofit tune` first."
        )
    return max(tried, key=lambda study: study.trials[-1].start.started)


def _trials(
    study: "ReadStudy | None", environment: Environment, memory_bytes: int, began: datetime, until: datetime
) -> tuple[Trial, ...]:
    """Returns the trials of comparable environments up to a time, judged by one budget, oldest first."""
    return tuple(
        trial
        for each in (() if study is None else study.trials)
        if each.start.started <= until and environment.comparable(each.start.environment)
        if (trial := each.under(memory_bytes, earlier=each.start.started < began)) is not None
    )


def _study_of(answer: Answer, plan_file: str) -> "ReadStudy | None":
    """Returns the study that holds the trials of an answer; None if it is not in its storage any more."""
    location = answer.study
    if location in ("", _MEMORY):
        raise StudyError("it was kept in memory. Give `study` a path to keep it.")
    # Opening what a stranger's file names could send this user's password to a server of the stranger's.
    if "://" in location or location.startswith(NETWORK):
        raise StudyError(
            f"the plan names {location}; expected a file, because a plan file never leads to a server. If you trust "
            "it, name the study itself: `autofit report URL`."
        )
    name = f"{answer.environment.workload}-{answer.objective.unit}"
    path = Path(plan_file).absolute().parent / location
    return next((study for study in studies_of.read_studies(path) if study.name == name), None)


def _is_study(path: Path) -> bool:
    try:  # by its name also if it is not there: the message is about a study
        return path.suffix in (".journal", ".db", ".sqlite") or is_storage(path)
    except OSError:
        return False


def _shifted(time: datetime, by_s: float) -> datetime:
    """Returns a time this much later. The result is within the years of the calendar."""
    try:
        return time + timedelta(seconds=by_s)
    except OverflowError:
        return (datetime.max if by_s > 0 else datetime.min).replace(tzinfo=UTC)


def _time(text: str) -> datetime:
    """Returns a time in ISO 8601; the beginning of time if it cannot be read, as in a file written by hand."""
    return instant(text) or datetime.min.replace(tzinfo=UTC)
