"""`autofit completion`: what each shell really offers, from the script that is generated from the parser."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autofit import strategies
from autofit.cli import _COMMANDS
from autofit.cli.arguments import KNOBS, TECHNIQUES
from autofit.cli.completion import _commands
from tests.cli.conftest import Run


@pytest.fixture
def script(run: Run, tmp_path: Path) -> "Script":
    return Script(run, tmp_path)


class Script:
    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder = run, folder
        (folder / "my plan.yaml").touch()

    def of(self, shell: str) -> Path:
        code, out, err = self._run("completion", shell)
        assert (code, err) == (0, "")
        path = self.folder / f"completion.{shell}"
        path.write_text(out)
        return path


def has(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


def bash(script: Script, *words: str) -> list[str]:
    """Returns what bash offers for the last of the words."""
    code = f"""
        source {script.of("bash")}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
        _autofit
        printf "%s\\n" "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-u", "-c", code], cwd=script.folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


def fish(script: Script, line: str) -> list[str]:
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script.of('fish')}; complete -C '{line}'"],
        cwd=script.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [each.split("\t")[0] for each in done.stdout.splitlines()]


def zsh(script: Script, line: str) -> str:
    """Returns the line that zsh runs after a Tab at the end of `line`, in a real terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(script.folder)
        os.execvp("zsh", ["zsh", "-f", "-i"])
    setup = (
        f"PS1='' PS2=''; autoload -Uz compinit; compinit -u -D; source {script.of('zsh')}; "
        "autofit() { print -r -- GOT ${(qq)@} END }; print RE''ADY\n"
    )
    try:
        os.write(terminal, setup.encode())
        _read(terminal, "READY")
        os.write(terminal, f"{line}\t\n".encode())
        return _read(terminal, " END").split("GOT ")[-1].partition(" END")[0]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read(terminal: int, until: str) -> str:
    text, end = "", time.monotonic() + 60
    while until not in text and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 2**16).decode(errors="replace")
    return text


def one_word() -> set[str]:
    return {name for name in _COMMANDS if " " not in name}


@has("bash")
def test_bash_completes_commands_of_two_words(script: Script) -> None:
    assert bash(script, "autofit", "nightly", "in") == ["init"]
    assert bash(script, "autofit", "nightly", "init") == ["init"]
    assert bash(script, "autofit", "nightly", "my") == ["my plan.yaml"]
    assert bash(script, "autofit", "nightly", "--dry") == ["--dry-run"]
    assert bash(script, "autofit", "nightly", "init", "--dry") == []
    assert bash(script, "autofit", "nightly", "init", "--glob") == ["--global-batch"]
    assert bash(script, "autofit", "nightly", "accept", "--jobs", "my") == ["my plan.yaml"]
    assert bash(script, "autofit", "init") == []


@has("fish")
def test_fish_completes_commands_of_two_words(script: Script) -> None:
    assert {"init", "accept", "revert", "my plan.yaml"} <= set(fish(script, "autofit nightly "))
    assert "--dry-run" in fish(script, "autofit nightly --dry")
    assert fish(script, "autofit nightly init --dry") == []
    assert "--global-batch" in fish(script, "autofit nightly init --glob")
    assert fish(script, "autofit init") == []


def test_the_names_that_completion_offers_are_those_of_the_families() -> None:
    assert set(TECHNIQUES) == {member.name for member in strategies.BUILT_IN}
    assert set(KNOBS) == {knob for member in strategies.BUILT_IN for knob in member.owns}


def test_completion_loads_no_torch() -> None:
    code = "import sys; from autofit.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@has("bash")
def test_bash_offers_the_values_that_are_known(script: Script) -> None:
    assert bash(script, "autofit", "tune", "--only", "pre") == ["precision"]
    assert set(bash(script, "autofit", "estimate", "--without", "")) == set(TECHNIQUES)
    assert bash(script, "autofit", "tune", "--track", "tens") == ["tensorboard"]
    assert bash(script, "autofit", "tune", "--searcher", "gui") == ["guided"]
    assert bash(script, "autofit", "tune", "--set", "micro") == ["micro_batch_size="]
    assert bash(script, "autofit", "export", "--to", "p") == ["python"]


@has("fish")
def test_fish_offers_the_values_that_are_known(script: Script) -> None:
    assert fish(script, "autofit tune --only pre") == ["precision"]
    assert fish(script, "autofit tune --set micro") == ["micro_batch_size="]
    assert fish(script, "autofit tune --track tens") == ["tensorboard"]
    assert "python" in fish(script, "autofit export --to p")


@has("zsh")
def test_zsh_offers_the_values_that_are_known(script: Script) -> None:
    assert "'precision'" in zsh(script, "autofit tune --only pre")
    assert "'micro_batch_size='" in zsh(script, "autofit tune --set micro")
    assert "'tensorboard'" in zsh(script, "autofit tune --track tens")


@has("bash")
def test_bash_completes_commands_flags_choices_and_files(script: Script) -> None:
    assert bash(script, "autofit", "es") == ["estimate"]
    assert one_word() <= set(bash(script, "autofit", ""))
    assert bash(script, "autofit", "--vers") == ["--version"]
    assert bash(script, "autofit", "tune", "--num") == ["--numerics"]
    assert bash(script, "autofit", "tune", "--numerics", "") == ["exact", "mixed", "any"]
    assert bash(script, "autofit", "tune", "--numerics", "m") == ["mixed"]
    assert bash(script, "autofit", "tune", "train.py", "-o", "my") == ["my plan.yaml"]
    assert bash(script, "autofit", "show", "my") == ["my plan.yaml"]
    assert bash(script, "autofit", "tune", "--seed", "") == []
    assert bash(script, "autofit", "completion", "") == ["bash", "zsh", "fish", "-h", "--help"]


@has("fish")
def test_fish_completes_commands_flags_choices_and_files(script: Script) -> None:
    assert fish(script, "autofit es") == ["estimate"]
    assert one_word() <= set(fish(script, "autofit "))
    assert "--numerics" in fish(script, "autofit tune --num")
    assert sorted(fish(script, "autofit tune --numerics ")) == ["any", "exact", "mixed"]
    assert fish(script, "autofit show my") == ["my plan.yaml"]
    assert "--numerics" not in fish(script, "autofit show --num")
    assert set(fish(script, "autofit completion ")) == {"bash", "fish", "zsh"}


@has("zsh")
@pytest.mark.parametrize(
    ("line", "ran"),
    [
        ("autofit est", "'estimate'"),
        ("autofit tune --num", "'tune' '--numerics'"),
        ("autofit tune --numerics mi", "'tune' '--numerics' 'mixed'"),
        ("autofit show my", "'show' 'my plan.yaml'"),
        ("autofit completion fi", "'completion' 'fish'"),
        ("autofit nightly in", "'nightly' 'init'"),
        ("autofit nightly my", "'nightly' 'my plan.yaml'"),
        ("autofit nightly init --glob", "'nightly' 'init' '--global-batch'"),
    ],
)
def test_zsh_completes_commands_flags_choices_and_files(line: str, ran: str, script: Script) -> None:
    assert zsh(script, line) == ran


def test_every_flag_of_the_parser_is_there(script: Script) -> None:
    texts = {shell: script.of(shell).read_text() for shell in ("bash", "zsh", "fish")}
    for command in _commands():
        for flag in command.flags:
            for name in flag.names:
                assert name in texts["bash"]
                assert name in texts["zsh"]
                assert (f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}") in texts["fish"]


def test_an_unknown_shell_is_a_usage_error(run: Run) -> None:
    code, _, err = run("completion", "tcsh")
    assert code == 2
    assert "bash" in err
