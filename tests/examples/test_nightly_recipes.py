"""The recipes for schedulers: autofit takes their commands, and their own tools read them where these are installed."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from autofit.cli import parser
from autofit.core.units import parse_duration
from autofit.nightly.jobs import read_jobs
from tests.examples.loading import EXAMPLES

RECIPES = EXAMPLES / "nightly"
SCHEDULED = "15 2 * * *"


def text(name: str) -> str:
    return (RECIPES / name).read_text(encoding="utf-8")


def commands(name: str) -> list[list[str]]:
    """Returns the arguments of each call of autofit in a recipe, as its shell or its scheduler splits them."""
    if name == "cronjob.yaml":
        return [container(yaml.safe_load(text(name)))["command"][1:]]
    if name == "github-actions.yml":
        lines = [step["run"] for step in steps() if "run" in step]
    elif name == "airflow_dag.py":
        lines = [node.value for node in ast.walk(ast.parse(text(name))) if isinstance(node, ast.Constant)]
    else:
        lines = [line for line in text(name).splitlines() if not line.startswith("#")]
    found = [re.search(r"autofit (nightly .*)", str(line).replace("\n", " ")) for line in lines]
    return [shlex.split(match.group(1)) for match in found if match is not None]


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(text("github-actions.yml"))["jobs"]["nightly"]["steps"]
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "name",
    ["crontab", "autofit-nightly.service", "nightly.sbatch", "github-actions.yml", "airflow_dag.py", "cronjob.yaml"],
)
def test_its_command_is_one_that_autofit_takes(name: str) -> None:
    (words,) = commands(name)
    given = parser().parse_args(words)
    assert given.jobs.endswith("jobs.yaml")
    assert 3 * 3600 < parse_duration(given.time) <= 4 * 3600


def test_the_jobs_file_names_examples_with_their_budgets() -> None:
    found = read_jobs(RECIPES / "jobs.yaml")
    assert found.problems == ()
    assert [job.name for job in found.jobs] == ["tabular", "convnet"]
    for job in found.jobs:
        source = (RECIPES / job.workload.partition(":")[0]).resolve()
        assert source.parent == EXAMPLES
        assert f'MEMORY = "{job.memory}"' in source.read_text()


def test_every_recipe_is_tested() -> None:
    tested = {"jobs.yaml", "crontab", "autofit-nightly.service", "autofit-nightly.timer", "nightly.sbatch"}
    tested |= {"github-actions.yml", "airflow_dag.py", "cronjob.yaml"}
    assert {path.name for path in RECIPES.iterdir() if path.is_file()} == tested


def test_crontab() -> None:
    entries = [line for line in text("crontab").splitlines() if line and not line.startswith("#")]
    settings, (entry,) = entries[:-1], entries[-1:]
    assert all(re.fullmatch(r"[A-Z]+=\S+", line) for line in settings)
    assert entry.startswith(SCHEDULED)
    assert "%" not in entry  # cron takes it for the end of the line
    checked = subprocess.run(["bash", "-n", "-c", entry[len(SCHEDULED) :]], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd(tmp_path: Path) -> None:
    for unit in ("autofit-nightly.service", "autofit-nightly.timer"):
        shutil.copy(RECIPES / unit, tmp_path)
    units = [str(tmp_path / "autofit-nightly.service"), str(tmp_path / "autofit-nightly.timer")]
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "autofit-nightly" in line] == []
    when = re.search(r"OnCalendar=(.*)", text("autofit-nightly.timer"))
    assert when is not None
    subprocess.run(["systemd-analyze", "calendar", when.group(1)], check=True, capture_output=True)


def test_slurm() -> None:
    checked = subprocess.run(["bash", "-n", RECIPES / "nightly.sbatch"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    names = re.search(r"jobs=\((.*)\)", text("nightly.sbatch"))
    array = re.search(r"--array=0-(\d+)", text("nightly.sbatch"))
    assert names is not None
    assert array is not None
    assert names.group(1).split() == [job.name for job in read_jobs(RECIPES / "jobs.yaml").jobs]
    assert len(names.group(1).split()) == int(array.group(1)) + 1


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm is not installed: sbatch --test-only was not run")
def test_slurm_takes_it() -> None:
    subprocess.run(["sbatch", "--test-only", RECIPES / "nightly.sbatch"], check=True)


def test_github_actions() -> None:
    workflow = yaml.safe_load(text("github-actions.yml"))
    assert workflow[True]["schedule"] == [{"cron": SCHEDULED}]  # YAML 1.1 reads the key `on` as a truth value
    assert workflow["concurrency"]["group"]
    assert all(("run" in step) != ("uses" in step) for step in steps())
    later = [step for step in steps() if step.get("if") != "always()"]
    assert len(later) == 1, "the summary must be shown after a regression too"


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="check-jsonschema is not installed")
def test_github_actions_has_the_schema_of_a_workflow() -> None:
    words = ["check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(RECIPES / "github-actions.yml")]
    checked = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed")
def test_kubernetes_has_the_schema_of_a_cron_job() -> None:
    words = [Path(sys.executable).with_name("kubernetes-validate"), RECIPES / "cronjob.yaml"]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "passed for resource cronjob/autofit-nightly" in checked.stdout + checked.stderr


def test_airflow() -> None:
    tree = ast.parse(text("airflow_dag.py"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"datetime", "airflow", "airflow.providers.standard.operators.bash"}
    arguments = {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords}
    assert {"schedule", "catchup", "max_active_runs", "retries", "execution_timeout"} <= arguments


def test_airflow_takes_it() -> None:
    pytest.importorskip("airflow", reason="Airflow is not installed: the DAG was not loaded")
    subprocess.run([sys.executable, RECIPES / "airflow_dag.py"], check=True)


def test_kubernetes() -> None:
    job = yaml.safe_load(text("cronjob.yaml"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert (job["spec"]["schedule"], job["spec"]["concurrencyPolicy"]) == (SCHEDULED, "Forbid")
    inside = job["spec"]["jobTemplate"]["spec"]
    assert inside["backoffLimit"] == 0
    assert inside["template"]["spec"]["restartPolicy"] == "Never"
    mounts = {mount["name"] for mount in container(job)["volumeMounts"]}
    assert mounts == {volume["name"] for volume in inside["template"]["spec"]["volumes"]}
