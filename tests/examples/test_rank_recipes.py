"""The recipes for several ranks: torchrun and autofit take their commands, and the parts of each fit together."""

import ast
import inspect
import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

import autofit
from autofit.cli import parser
from autofit.core.units import parse_time
from tests.examples.loading import EXAMPLES

RECIPES = EXAMPLES / "ranks"


def text(name: str) -> str:
    return (RECIPES / name).read_text(encoding="utf-8")


def command(name: str) -> list[str]:
    """Returns the words of torchrun's command in a recipe, with numbers for variables."""
    if name == "job.yaml":
        _, job = yaml.safe_load_all(text(name))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        found: list[str] = container["command"]
        return found
    joined = text(name).replace("\\\n", " ")
    (line,) = [each for each in joined.splitlines() if each.startswith("srun ")]
    return shlex.split(re.sub(r'"\$(\w+)', '"2', line))[1:]


@pytest.mark.parametrize("name", ["tune.sbatch", "job.yaml"])
def test_torchrun_and_autofit_take_its_command(name: str) -> None:
    program, *words = command(name)
    assert program == "torchrun"
    given = get_args_parser().parse_args(words)
    assert (given.module, given.training_script, given.nnodes) == (True, "autofit", "2")
    assert given.rdzv_backend == "c10d"
    assert given.rdzv_endpoint.endswith(":29500")
    asked: Any = parser().parse_args(given.training_script_args)
    assert (asked.command, asked.target, asked.nproc) == ("tune", "train.py:make_workload", None)
    assert parse_time(asked.time) == 900


def test_the_shell_reads_the_recipe_for_slurm() -> None:
    subprocess.run(["bash", "-n", str(RECIPES / "tune.sbatch")], check=True)


def test_pods_find_the_first_of_them_by_its_service() -> None:
    service, job = yaml.safe_load_all(text("job.yaml"))
    pods, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed", "pods then have the host names NAME-0, NAME-1"
    assert pods["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    (endpoint,) = [word for word in command("job.yaml") if word.startswith("--rdzv-endpoint=")]
    assert endpoint == f"--rdzv-endpoint={name}-0.{pods['subdomain']}:29500"
    assert f"--nnodes={job['spec']['completions']}" in command("job.yaml")


def test_the_recipe_for_ray_calls_autofit_as_it_is() -> None:
    tree = ast.parse(text("ray_train.py"))
    calls = {ast.unparse(each.func): each for each in ast.walk(tree) if isinstance(each, ast.Call)}
    known = inspect.signature(autofit.tune).parameters
    assert {each.arg for each in calls["autofit.tune"].keywords} <= known.keys()
    inspect.signature(autofit.Fit.prepare).bind(None, *calls["fit.prepare"].args)
