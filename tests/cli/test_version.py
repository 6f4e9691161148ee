"""`autofit --version` is quick; with `--verbose` it prints what a bug report needs, and no secrets."""

import subprocess
import sys

import pytest

from autofit.cli import version
from autofit.devices.cpu import Cpu
from tests.cli.conftest import Run
from tests.cli.processes import command, environment


def test_the_version_is_one_line_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom autofit import cli\n"
        "try: cli.main(['--version'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'optuna', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("torch-autofit ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("words", [("--version", "--verbose"), ("--verbose", "--version")])
def test_verbose_prints_versions_system_and_devices(words: tuple[str, ...], run: Run) -> None:
    code, out, _ = run(*words)
    facts = {line.split()[0]: line.partition(" ")[2].strip() for line in out.splitlines()}
    assert code == 0
    assert {"autofit", "python", "system", "torch", "optuna", "pydantic", "threads", "device"} <= facts.keys()
    assert "(cpu)" in facts["device"]
    assert "GiB" in facts["device"]


def test_only_known_variables_are_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    _, out, _ = run("--version", "--verbose")
    assert "PYTORCH_ALLOC_CONF max_split_size_mb:128" in out
    assert "secret" not in out


def test_a_torch_that_cannot_be_loaded_is_a_fact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch cannot be loaded: ModuleNotFoundError" in version.environment()


def test_a_device_whose_driver_fails_is_a_fact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Cpu) -> str:
        raise RuntimeError("driver error")

    monkeypatch.setattr(Cpu, "name", fails)
    assert "cpu: RuntimeError: driver error" in version.environment()


def test_verbose_alone_is_a_usage_error() -> None:
    done = subprocess.run(command("--verbose", "show"), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--version" in done.stderr
