"""The compile cache of one search is empty, its own, and gone afterwards."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autofit.probing.compile_cache import VARIABLE, CompileCache, private_cache


@pytest.mark.parametrize("before", [None, "/somewhere/else"])
def test_the_cache_is_empty_and_the_variable_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with private_cache():
        folder = Path(os.environ[VARIABLE])
        assert list(folder.iterdir()) == []
        (folder / "code").write_text("kernel")
    assert not folder.exists()
    assert os.environ.get(VARIABLE) == before


def test_each_search_has_its_own() -> None:
    with CompileCache() as one, CompileCache() as other:
        assert one != other


def test_an_error_inside_puts_the_variable_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(KeyError), private_cache():
        raise KeyError
    assert VARIABLE not in os.environ


def test_the_folder_of_a_killed_search_is_removed_by_the_next_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from autofit.probing.compile_cache import CompileCache as C; import sys; c = C(); print(c.name, flush=True)"
    words = [sys.executable, "-c", f"{code}; sys.stdin.readline()"]
    folders, children = list[Path](), list[subprocess.Popen[str]]()
    for _ in range(2):
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert child.stdout is not None
        folders.append(Path(child.stdout.readline().strip()))
        children.append(child)
    killed, living = folders
    (killed / "code").write_text("kernel")
    (tmp_path / "autofit-compiled-link").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").mkdir()
    young = tmp_path / "autofit-compiled-young"
    young.mkdir()
    children[0].kill()
    children[0].communicate()
    for folder in (killed, living, tmp_path / "mine"):
        os.utime(folder, (0, 0))
    with CompileCache() as new:
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {living.name, young.name, "autofit-compiled-link", "mine", Path(new).name}
    children[1].communicate("\n")
    assert not living.exists()
