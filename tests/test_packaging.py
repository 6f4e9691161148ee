"""The wheel has every part of the package, and works where nothing else of this checkout is. The sdist has it all."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from autofit.trackers import BUILT_IN

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    (found,) = folder.glob("torch_autofit-*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {path for path in (ROOT / "autofit").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {str(path.relative_to(ROOT)) for path in there}


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="which files are a part of the project is known to git")
def test_the_sdist_has_every_file_of_the_project(tmp_path: Path) -> None:
    source, backend = tmp_path / "source", tmp_path / "backend"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(backend), *system["requires"]]
    subprocess.run(install, capture_output=True, timeout=300, check=True)
    code = f"import {system['build-backend']} as backend; backend.build_sdist({str(tmp_path)!r})"
    path = {**os.environ, "PYTHONPATH": str(backend)}
    subprocess.run([sys.executable, "-c", code], cwd=source, env=path, capture_output=True, timeout=300, check=True)
    (archive,) = tmp_path.glob("torch_autofit-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
    assert names == files | {"PKG-INFO"}


@pytest.mark.slow
def test_the_installed_wheel_explains_a_plan_and_publishes_its_schemas(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    for name in ("core/plan", "doctor/doctor", "reports/report", "nightly/jobs"):
        assert json.loads((target / "autofit" / f"{name}.schema.json").read_text())["properties"]
    assert (target / "bin" / "autofit").exists()
    code = "import sys, autofit.cli; print(autofit.cli.__file__); sys.exit(autofit.cli.main(['export', '--help']))"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.startswith(str(target))
    assert "--target-version" in ran.stdout


ASKED = {"gp", "huggingface", "lightning", "accelerate", "trackers", "docs", "dev", "examples"}
"""Extras whose names users may rely on."""


def extras() -> dict[str, list[str]]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert isinstance(found, dict)
    return found


def test_the_readme_names_every_extra_and_no_other() -> None:
    section = (ROOT / "README.md").read_text().partition("| extra | for |\n")[2].partition("\n\n")[0]
    named = [name for row in section.splitlines()[1:] for name in re.findall("`([a-z]+)`", row)]
    assert set(named) == extras().keys() >= ASKED


def test_the_trackers_are_those_that_autofit_has() -> None:
    (asked,) = extras()["trackers"]
    name, _, listed = asked.removesuffix("]").partition("[")
    assert name == "torch-autofit"
    assert sorted(listed.split(",")) == sorted(member.extra for member in BUILT_IN)


def test_each_extra_that_a_text_tells_to_install_exists() -> None:
    texts = [ROOT / "README.md", *(ROOT / "examples").rglob("*.*"), *(ROOT / "autofit").rglob("*.py")]
    named = {
        name
        for path in texts
        if path.suffix in {".py", ".md", ".yml", ".toml"}
        for group in re.findall(
            r"(?:(?:torch-autofit|['\"]\.)\[|install_command\(['\"])([a-z,]+)['\"\]]", path.read_text()
        )
        for name in group.split(",")
    }
    assert ASKED - {"dev"} <= named <= extras().keys()
