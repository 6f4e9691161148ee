"""A script with Accelerate under a plan: its arguments, and what is in effect when it trains."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import UsageError
from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.core.space import Refusal
from autofit.fit import Fit
from autofit.integrations.accelerate import STEPS, accelerator_arguments, loader_arguments
from autofit.strategies.shards import in_bf16
from tests.conformance.test_exporters import OWN, answer

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

import autofit
from autofit.integrations.accelerate import accelerator_arguments, loader_arguments

plan = autofit.load("autofit.yaml")
accelerator = Accelerator(**accelerator_arguments(plan))
rows, dtypes, updates, losses = [], [], [], []
line = nn.Linear(6, 3)
line.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
line.register_forward_hook(lambda module, inputs, out: dtypes.append(str(out.dtype)))
dataset = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))
loader = DataLoader(dataset, **loader_arguments(plan))
optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
optimizer.register_step_post_hook(lambda *_: updates.append(len(rows)))
model, optimizer, loader = accelerator.prepare(nn.Sequential(line), optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
print(json.dumps({"rows": rows, "dtypes": sorted(set(dtypes)), "updates": updates}))
"""


def fit(**values: KnobValue) -> Fit:
    return Fit(answer(OWN.replace(**{"micro_batch_size": 4, "accumulation_steps": 2, **values})))


def test_the_arguments_of_an_accelerator() -> None:
    expected = {"mixed_precision": "bf16", "gradient_accumulation_steps": 2, "cpu": True}
    assert accelerator_arguments(fit(precision="bf16")) == expected


def test_a_plan_for_an_accelerator_device_leaves_the_choice_of_the_device() -> None:
    given = fit().answer
    environment = given.environment.model_copy(update={"device_type": "cuda"})
    assert "cpu" not in accelerator_arguments(Fit(given.model_copy(update={"environment": environment})))


def test_ranks_replicate_the_model_by_default_and_shards_are_a_plugin(recwarn: pytest.WarningsRecorder) -> None:
    found = []
    for layout in ("replicated", "full"):
        given = fit(layout=layout).answer
        environment = given.environment.model_copy(update={"device_type": "cuda"})
        found.append(accelerator_arguments(Fit(given.model_copy(update={"environment": environment}))))
        assert len(recwarn) == (layout == "full"), "the class of the blocks belongs into the code"
    assert found[0] == {"mixed_precision": "no", "gradient_accumulation_steps": 2}
    assert found[1].keys() == {"mixed_precision", "fsdp_plugin", "gradient_accumulation_plugin"}
    shards, steps = found[1]["fsdp_plugin"], found[1]["gradient_accumulation_plugin"]
    assert (shards.fsdp_version, shards.reshard_after_forward) == (2, True)
    assert (steps.num_steps, steps.sync_each_batch) == (2, True)


def started(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what a launcher of several ranks tells the first one."""
    for name, value in {"RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def test_rows_of_ranks_and_gradients_that_wait_are_arguments(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(4, monkeypatch)

    def given(**values: Any) -> dict[str, Any]:
        found = fit(accumulation_steps=2, sync_each_batch=False, **values).answer
        changes = {"device_type": "cuda", "settings": {"ranks": "4", "rows": "2"}}
        environment = found.environment.model_copy(update=changes)
        return accelerator_arguments(Fit(found.model_copy(update={"environment": environment})))

    full = given(layout="full")
    assert full["gradient_accumulation_plugin"].sync_each_batch is False
    assert not any("sync_each_batch" in str(each.message) for each in recwarn)
    with pytest.warns(UserWarning, match="sync_each_batch=False"):
        rows = given(layout="hybrid")
    assert rows["gradient_accumulation_plugin"].sync_each_batch is True, "else a rank keeps whole gradients"
    sizes = rows["parallelism_config"]
    assert (sizes.dp_replicate_size, sizes.dp_shard_size) == (2, 2)


def test_weights_are_gathered_in_bf16_by_the_plugin(recwarn: pytest.WarningsRecorder) -> None:
    given = fit(layout="full", gather_precision="bf16").answer
    environment = given.environment.model_copy(update={"device_type": "cuda"})
    plugin = accelerator_arguments(Fit(given.model_copy(update={"environment": environment})))["fsdp_plugin"]
    assert plugin.mixed_precision_policy == in_bf16(autocast=False)[1]
    assert not any("gather_precision" in str(each.message) for each in recwarn)
    with pytest.warns(UserWarning, match="gather_precision=bf16"):
        accelerator_arguments(Fit(given))  # on the CPU nothing is sharded


@pytest.mark.slow
def test_compilation_is_a_plugin() -> None:
    plugin = accelerator_arguments(fit(compile="blocks"))["dynamo_plugin"]
    assert (plugin.backend.value, plugin.mode, plugin.use_regional_compilation) == ("INDUCTOR", "default", True)


def test_a_plan_of_several_ranks_is_for_as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = fit(layout="replicated").answer
    settings = {**given.environment.settings, "ranks": "2"}
    environment = given.environment.model_copy(update={"settings": settings})
    plan = Fit(given.model_copy(update={"environment": environment}))
    with pytest.raises(UsageError, match="found 1 process, and the plan is for 2 ranks"):
        accelerator_arguments(plan)
    started(2, monkeypatch)
    assert accelerator_arguments(plan)["gradient_accumulation_steps"] == plan.plan.accumulation_steps


def test_the_arguments_of_a_loader() -> None:
    assert loader_arguments(fit()) == {"batch_size": 4}
    fixed = (Refusal(name="micro_batch_size", reason="its batch sampler decides"),)
    assert loader_arguments(Fit(fit().answer.model_copy(update={"refused": fixed}))) == {}
    pinned = (Refusal(name="micro_batch_size", reason="pinned to 4"),)
    assert loader_arguments(Fit(fit().answer.model_copy(update={"refused": pinned}))) == {"batch_size": 4}
    loading = Loading(
        needed_per_s=1.0, trials=(LoadingTrial(workers=1),), workers=1, prefetch_factor=2, persistent_workers=True
    )
    given = fit().answer
    proof = given.proof.model_copy(update={"loading": loading})
    arguments = loader_arguments(Fit(given.model_copy(update={"proof": proof})))
    loader = DataLoader(TensorDataset(torch.zeros(8, 1)), **arguments)
    assert (loader.batch_size, loader.num_workers, loader.persistent_workers) == (4, 1, True)


def test_an_environment_variable_that_wins_is_refused_with_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS, "8")
    with pytest.raises(UsageError, match=rf"found {STEPS}=8 .*the plan has 2 accumulation steps"):
        accelerator_arguments(fit())
    monkeypatch.setenv(STEPS, "2")
    assert accelerator_arguments(fit())["gradient_accumulation_steps"] == 2


def test_what_no_argument_expresses_is_said() -> None:
    with pytest.warns(UserWarning, match=r"memory_format=channels_last \(write: model.to\(memory_format="):
        accelerator_arguments(fit(memory_format="channels_last"))


def test_the_line_that_clips_is_said() -> None:
    given = Fit(answer(OWN, settings={"max_grad_norm": "5.0"}))
    with pytest.warns(UserWarning, match=r"only in your code\. Write .*clip_grad_norm_\(model.parameters\(\), 5\.0\)"):
        accelerator_arguments(given)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "torch.bfloat16"), ("fp32", "torch.float32")])
def test_a_training_has_the_plan_in_effect(precision: str, dtype: str, tmp_path: Path) -> None:
    fit(precision=precision).save(tmp_path / "autofit.yaml")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"rows": [4] * 4, "dtypes": [dtype], "updates": [2, 4]}
