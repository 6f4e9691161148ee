"""What autofit says of itself: `--version`, what a bug report needs without secrets, and what shells complete."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autofit import cli, strategies
from autofit.cli import about
from autofit.cli.arguments import KNOBS, TECHNIQUES
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


def test_what_turns_ctrl_c_into_an_exit_code_loads_nothing_heavy() -> None:
    code = "import sys, autofit.cli.outcome; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


@pytest.mark.parametrize("words", [("--version", "--verbose"), ("--verbose", "--version")])
def test_verbose_prints_versions_system_and_devices(words: tuple[str, ...], run: Run) -> None:
    code, out, _ = run(*words)
    facts = {line.split()[0]: line.partition(" ")[2].strip() for line in out.splitlines()}
    assert code == 0
    assert {"autofit", "python", "system", "torch", "optuna", "pydantic", "device"} <= facts.keys()
    assert "(cpu)" in facts["device"]


def test_only_known_variables_are_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    _, out, _ = run("--version", "--verbose")
    assert "PYTORCH_ALLOC_CONF max_split_size_mb:128" in out
    assert "secret" not in out


def test_a_torch_that_cannot_be_loaded_is_a_fact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch cannot be loaded: ModuleNotFoundError" in about.environment()


def test_a_device_whose_driver_fails_is_a_fact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Cpu) -> str:
        raise RuntimeError("driver error")

    monkeypatch.setattr(Cpu, "name", fails)
    assert "cpu: RuntimeError: driver error" in about.environment()


def test_verbose_alone_is_a_usage_error() -> None:
    done = subprocess.run(command("--verbose", "show"), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--version" in done.stderr


def completions(run: Run, folder: Path, *words: str) -> list[str]:
    """Returns what bash offers for the last of the words, by its own script, in a folder with a file."""
    code, out, err = run("completion", "bash")
    assert (code, err) == (0, "")
    (folder / "completion.bash").write_text(out)
    (folder / "my plan.yaml").touch()
    script = f"""
        source completion.bash
        COMP_WORDS=({" ".join(f"'{word}'" for word in ("autofit", *words))}) COMP_CWORD={len(words)}
        _shtab_autofit
        printf "%s\\n" "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.split("\n") if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("es",), ["estimate"]),
        (("tune", "--num"), ["--numerics"]),
        (("tune", "--numerics", "m"), ["mixed"]),
        (("tune", "--only", "pre"), ["precision"]),
        (("estimate", "--without", "pre"), ["precision"]),
        (("tune", "--track", "tens"), ["tensorboard"]),
        (("tune", "--searcher", "gui"), ["guided"]),
        (("tune", "--set", "micro"), ["micro_batch_size="]),
        (("tune", "train.py", "-o", "my"), ["my plan.yaml"]),
        (("tune", "--seed", ""), []),
        (("export", "--to", "p"), ["python"]),
        (("show", "my"), ["my plan.yaml"]),
        (("nightly", "in"), ["init"]),
        (("nightly", "--dry"), ["--dry-run"]),
        (("nightly", "init", "--dry"), []),
        (("nightly", "init", "--glob"), ["--global-batch"]),
        (("nightly", "accept", "--jobs", "my"), ["my plan.yaml"]),
        (("init",), []),
    ],
)
def test_bash_completes_commands_flags_values_and_files(
    words: tuple[str, ...], offered: list[str], run: Run, tmp_path: Path
) -> None:
    assert completions(run, tmp_path, *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_flag_of_each_command_is_in_the_script(shell: str, run: Run) -> None:
    _, out, _ = run("completion", shell)
    (subs,) = (action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction))
    flags = {name for sub in subs.choices.values() for a in sub._actions for name in a.option_strings}
    assert [name for name in flags if name.strip("-") not in out] == []


def test_the_names_that_completion_offers_are_those_of_the_families() -> None:
    assert set(TECHNIQUES) == {member.name for member in strategies.BUILT_IN}
    assert set(KNOBS) == {knob for member in strategies.BUILT_IN for knob in member.owns}


def test_completion_loads_no_torch() -> None:
    code = "import sys; from autofit.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_shell_is_a_usage_error(run: Run) -> None:
    code, _, err = run("completion", "csh")
    assert code == 2
    assert "bash" in err
