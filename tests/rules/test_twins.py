"""Each module of the package has a test at the same path, so that a reader finds it without searching."""

from pathlib import Path

from tests.rules.source import ROOT, modules

RECORD = "a record or protocol without code of its own"
BASE = "a base class: tests/conformance runs its contract against each member"
WITHOUT_TWIN = {
    "autofit/__main__.py": "one line; tests/cli runs `python -m autofit`",
    "autofit/core/account.py": RECORD,
    "autofit/core/trial.py": RECORD,
    "autofit/core/work.py": RECORD,
    "autofit/estimators/base.py": BASE,
    "autofit/exporters/base.py": BASE,
    "autofit/probing/remote/target.py": "the request that a child is opened with: tests/probing/remote/test_bench.py",
    "autofit/probing/remote/supervisor.py": "a process of its own: tests/faults/test_processes.py",
    "autofit/search/tuning.py": RECORD,
    "autofit/searchers/base.py": BASE,
    "autofit/strategies/base.py": BASE,
    "autofit/trackers/base.py": BASE,
    "autofit/tracing/cuda/autocast.py": "needs the stand-in's process: tests/tracing/cuda/test_standin.py",
    "autofit/tracing/cuda/device_spoofing.py": "needs the stand-in's process: tests/tracing/cuda/test_standin.py",
}
"""Modules that need none, each with the reason. A module with a twin does not belong here."""


def twin(path: Path) -> Path:
    """Returns where the test of a module is: `autofit/a/b.py` is tested by `tests/a/test_b.py`."""
    return Path("tests", *path.parts[1:-1], f"test_{path.stem.lstrip('_')}.py")


def test_every_module_has_a_test_at_its_path() -> None:
    found = [str(m.path) for m in modules() if m.path.name != "__init__.py" and not (ROOT / twin(m.path)).exists()]
    assert sorted(set(found) - set(WITHOUT_TWIN)) == []


def test_exceptions_are_few_and_still_needed() -> None:
    paths = [m.path for m in modules() if m.path.name != "__init__.py"]
    known = {str(path) for path in paths if not (ROOT / twin(path)).exists()}
    assert set(WITHOUT_TWIN) - known == set()
    assert len(WITHOUT_TWIN) <= 0.1 * len(paths)


def test_the_tests_that_exceptions_name_exist() -> None:
    named = [word for reason in WITHOUT_TWIN.values() for word in reason.split() if word.startswith("tests/")]
    assert [path for path in named if not (ROOT / path.rstrip(".:,")).exists() and not (ROOT / path).exists()] == []
