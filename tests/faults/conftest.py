import shutil
from pathlib import Path

import pytest

from tests.study.samples import reopen


@pytest.fixture(scope="session")
def empty_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study without trials; making the tables takes Optuna most of a second."""
    path = tmp_path_factory.mktemp("study") / "empty.db"
    reopen(path)
    return path


@pytest.fixture
def db(empty_study: Path, tmp_path: Path) -> Path:
    return shutil.copy(empty_study, tmp_path / "s.db")
