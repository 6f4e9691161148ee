"""The public surface: what can be imported, at what cost, and which words the command line knows."""

import argparse
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import autofit
from autofit import cli, planfile
from autofit.core import errors
from autofit.core.plan import Plan
from tests.conformance.test_exporters import answer

ROOT = Path(__file__).parents[1]

NAMES = [
    "Answer", "AutofitError", "BudgetSpent", "Busy", "ClockError", "DeviceMissing", "DevicePoisoned", "Diagnosis",
    "Estimation", "Fit", "NonFiniteLoss", "NothingFits", "Plan", "PlanFileError", "RanksLost", "RestoreError",
    "SpaceError", "StorageError", "StudyError", "TrainStep", "Untraceable", "UsageError", "UserCodeError",
    "Workload", "WorkloadError", "diagnose", "estimate", "load", "tune", "watch",
]  # fmt: skip

FLAGS = {
    "": ["--help", "--verbose", "--version", "-h", "COMMAND"],
    "tune": [
        "--arg", "--device", "--force", "--global-batch", "--help", "--json", "--max-global-batch", "--max-grad-norm",
        "--memory", "--mode", "--nproc", "--numerics", "--objective", "--only", "--output", "--planned-steps",
        "--prove", "--quiet", "--searcher", "--seed", "--set", "--strategies", "--study", "--time", "--track",
        "--trials", "--without", "-h", "-o", "-q", "TARGET",
    ],
    "run": [
        "--force", "--global-batch", "--help", "--max-global-batch", "--max-grad-norm", "--memory", "--numerics",
        "--objective", "--only", "--output", "--planned-steps", "--quiet", "--searcher", "--seed", "--set",
        "--strategies", "--study", "--time", "--track", "--without", "-h", "-o", "-q", "SCRIPT",
    ],
    "estimate": [
        "--arg", "--device", "--force", "--global-batch", "--help", "--html", "--json", "--layout", "--max-grad-norm",
        "--memory", "--mode", "--numerics", "--only", "--quiet", "--ranks", "--seed", "--strategies", "--without", "-h",
        "-q", "TARGET",
    ],
    "doctor": [
        "--all", "--arg", "--device", "--fail-on", "--force", "--global-batch", "--help", "--html", "--json",
        "--max-grad-norm", "--no-runs", "--only", "--quiet", "--script", "--seed", "--skip", "--steps", "--time", "-h",
        "-q", "TARGET",
    ],
    "show": ["--help", "--json", "--quiet", "-h", "-q", "PLAN"],
    "diff": ["--help", "--json", "--quiet", "-h", "-q", "A", "B"],
    "report": [
        "--force", "--format", "--help", "--json", "--name", "--output", "--quiet", "-h", "-o", "-q", "PLAN | STUDY",
    ],
    "nightly": [
        "--dry-run", "--fail-on", "--force", "--help", "--html", "--job", "--json", "--markdown", "--on", "--quiet",
        "--time", "-h", "-q", "FILE",
    ],
    "nightly init": [
        "--device", "--force", "--global-batch", "--help", "--json", "--memory", "--name", "--output", "--quiet",
        "--time", "-h", "-o", "-q", "TARGET",
    ],
    "nightly accept": ["--help", "--jobs", "--json", "--level", "--quiet", "-h", "-q", "JOB"],
    "completion": ["--help", "-h", "None"],
    "export": [
        "--force", "--help", "--json", "--output", "--quiet", "--target-version", "--to", "-h", "-o", "-q", "PLAN",
    ],
}  # fmt: skip


def test_the_public_names_are_these_sorted_and_importable() -> None:
    assert autofit.__all__ == NAMES == sorted(NAMES)
    assert dir(autofit) == NAMES
    for name in NAMES:
        assert getattr(autofit, name).__name__ == name


def test_the_arguments_of_prepare_are_these() -> None:
    found = inspect.signature(autofit.Fit.prepare).parameters
    assert list(found) == [
        "self", "model", "loader", "optimizer", "loss_fn", "step_fn", "update_fn", "scheduler", "scaler",
        "max_grad_norm", "on_oom",
    ]  # fmt: skip
    assert found["on_oom"].default == "raise"


def test_every_error_is_public() -> None:
    kinds = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.AutofitError)}
    assert kinds == {
        name for name in NAMES if isinstance(v := getattr(autofit, name), type) and issubclass(v, Exception)
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tone'"):
        autofit.tone  # noqa: B018  # looking it up is the test


def words(parser: argparse.ArgumentParser) -> list[str]:
    found = [word for action in parser._actions for word in action.option_strings or [str(action.metavar)]]
    return sorted(found, key=lambda word: (not word.startswith("-"), word))


def test_the_command_line_knows_these_words() -> None:
    top = cli.parser()
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    found = {"": words(top)} | {name: words(parser) for name, parser in commands.choices.items()}
    assert found == {name: sorted(flags, key=lambda w: (not w.startswith("-"), w)) for name, flags in FLAGS.items()}


def loaded_by(code: str, folder: Path = ROOT) -> set[str]:
    script = f"{code}\nimport sys\nprint('LOADED', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=240, check=True
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


HELP = "from autofit.cli import main\ntry: main(['tune', '--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "code", ["import autofit", "import autofit\ndir(autofit)", HELP], ids=["import", "dir", "help"]
)
def test_importing_and_help_load_nothing_heavy(code: str) -> None:
    heavy = {"torch", "optuna", "pydantic", "yaml", "numpy", "sqlalchemy", "tqdm"}
    assert not loaded_by(code) & heavy


def test_an_error_can_be_caught_without_loading_torch() -> None:
    loaded = loaded_by("import autofit\nautofit.NothingFits")
    assert "autofit.core.errors" in loaded
    assert not loaded & {"torch", "optuna", "pydantic"}


@pytest.mark.parametrize(
    "words",
    [
        "show a.yaml", "show a.yaml --json", "diff a.yaml b.yaml", "diff a.yaml b.yaml --json",
        "export a.yaml --to huggingface", "report a.yaml -o report.html",
    ],
)  # fmt: skip
def test_what_reads_plan_files_needs_no_torch(words: str, tmp_path: Path) -> None:
    for name, size in (("a.yaml", 2), ("b.yaml", 4)):
        planfile.save(answer(Plan(values={"micro_batch_size": size, "accumulation_steps": 2})), tmp_path / name)
    loaded = loaded_by(f"from autofit.cli import main\nassert main({words.split()!r}) == 0", tmp_path)
    assert "autofit.planfile" in loaded
    assert not loaded & {"torch", "optuna"}
