"""A database for tests of what processes share: an SQLite file, by a URL as a server has one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autofit.core.objective import Objective
from autofit.study import Study
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from tests.fakes import briefing_of, small_bench

BRIEFING = briefing_of(small_bench())


def url_in(folder: Path) -> str:
    """Returns the URL of a new database."""
    return f"sqlite:///{folder / 'fleet.db'}?timeout=30"


def place_in(folder: Path) -> Place:
    """Returns a new database."""
    return Place.of(url_in(folder))


@contextmanager
def study_in(folder: Path) -> Iterator[Study]:
    """Opens a study in the database of a folder."""
    study = Study.open(
        url_in(folder), name="model-samples", environment=BRIEFING.environment, space=BRIEFING.space,
        objective=Objective(), memory_bytes=BRIEFING.budget.memory_bytes,
    )  # fmt: skip
    try:
        yield study
    finally:
        study.close()


def offer_of(study: str = "model-samples") -> SearchOffer:
    """Returns an offer of plans of a study."""
    return SearchOffer(
        study=study, target="train.py:make_workload", environment=BRIEFING.environment,
        memory_bytes=BRIEFING.budget.memory_bytes, objective=Objective(),
    )  # fmt: skip
