"""Merging: moves the studies of a local file into another storage, such as a database that is available again."""

import re
from collections.abc import Collection
from pathlib import Path

from optuna.storages import BaseStorage
from optuna.study import StudyDirection

from autofit.study.location import Place
from autofit.study.optuna_storage import connected, quiet
from autofit.study.stored import PREFIX

MERGED_FROM, MERGED = f"{PREFIX}merged_from", f"{PREFIX}merged"
"""Attributes of a copy: what it is a copy of, set before its trials; and that it is complete, set after them."""


def merge(path: Path, place: Place) -> int:
    """Moves the studies of an SQLite file to another storage, and returns the number of trials moved.

    Each becomes a continuation of the study with its name: `name#2` beside `name`. A study that is opened later uses
    the trials of all continuations. The file is deleted once all of its studies are copied; if that was cut short, the
    next call finishes it, and no trial is copied twice.

    Args:
        path: the file, which no study uses.
        place: the storage that receives the studies.

    Raises:
        StudyError: one of the storages cannot be used. The studies are kept for the next call.
    """
    with place.guarded("written"), connected(Place.of(path)) as source, connected(place) as target, quiet():
        count = sum([_copied(study.study_name, source, target) for study in source.get_all_studies()])
    path.unlink()
    return count


def _copied(name: str, source: BaseStorage, target: BaseStorage) -> int:
    """Copies a study unless an earlier call did; returns the number of trials copied."""
    study = source.get_study_id_from_name(name)
    trials = source.get_all_trials(study, deepcopy=False)
    if not trials:
        return 0
    origin = f"{name} of {trials[0].datetime_start}"
    present = {found.study_name: found.user_attrs for found in target.get_all_studies()}
    for known, attributes in list(present.items()):
        if attributes.get(MERGED_FROM) == origin:
            if attributes.get(MERGED):
                return 0
            target.delete_study(target.get_study_id_from_name(known))  # it was cut short
            del present[known]
    copy = target.create_new_study([StudyDirection.MAXIMIZE], _continuation(name, present))
    for key, value in {MERGED_FROM: origin, **source.get_study_user_attrs(study)}.items():
        target.set_study_user_attr(copy, key, value)
    for trial in trials:
        target.create_new_trial(copy, trial)
    target.set_study_user_attr(copy, MERGED, True)
    return len(trials)


def _continuation(name: str, taken: Collection[str]) -> str:
    """Returns the first free name among that of a study and those of its continuations."""
    first = re.sub(r"#[0-9]+$", "", name)
    names = [first, *(f"{first}#{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in names if each not in taken)
