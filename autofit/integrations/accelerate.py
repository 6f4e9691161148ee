"""A plan in an Accelerate script: arguments of the `Accelerator` and of the DataLoader.

    plan = autofit.load("autofit.yaml")
    accelerator = Accelerator(**accelerator_arguments(plan))
    loader = DataLoader(dataset, shuffle=True, **loader_arguments(plan))

Make the `Accelerator` before any other: a second one in the same process keeps the precision of the first. For the same
reason, tune before it, in the same script or by `autofit tune train.py:make_workload -o autofit.yaml`. Each of several
ranks, such as those of torchrun, calls `autofit.tune` and makes its `Accelerator` with the arguments of the same plan.
"""

import os
from collections.abc import Mapping
from typing import Any

from autofit.core.answer import Answer
from autofit.core.environment import launched_ranks
from autofit.core.errors import UsageError
from autofit.exporters.plan_facts import (
    GATHER,
    LAYOUT,
    REPLICATED,
    SYNC,
    divides_each_time,
    gathers_in_bf16,
    replicated_arguments,
)
from autofit.integrations.plan_settings import GivenPlan, fit_of, import_package, loader_arguments, warn_of
from autofit.strategies.shards import in_bf16

__all__ = ["accelerator_arguments", "loader_arguments"]

STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Environment variable that wins over the argument of the `Accelerator`. `accelerate launch` sets it for DeepSpeed."""
_OF_THE_LAUNCH = ("distributed_type", "num_processes")
"""Settings that follow from how the ranks were started."""


def accelerator_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns precision, accumulation, compilation and layout, for `Accelerator(**accelerator_arguments(plan))`.

    Write each micro batch inside `with accelerator.accumulate(model):`. Accelerate divides the loss of each micro batch
    by the accumulation steps, also in the last step of an epoch if that has fewer. Warns of what the plan has beyond
    these arguments and the loader's.

    Raises:
        UsageError: the environment variable ACCELERATE_GRADIENT_ACCUMULATION_STEPS has another value, the plan is for
            several ranks and as many were not started, or accelerate, which a plan that compiles or shards needs here,
            is not installed.
        PlanFileError: the file is not a plan file.
    """
    fit = fit_of(plan)
    found, steps = fit.export("accelerate"), fit.plan.accumulation_steps
    _check_launch(steps, fit.answer.environment.ranks)
    done = {GATHER} if "fsdp_config" in found.settings else set()  # in the plugins below
    done |= set() if divides_each_time(fit.answer) else {SYNC}
    given = replicated_arguments(fit.answer)
    done |= given.keys()
    if fit.plan.values.get(LAYOUT) == REPLICATED:  # as an Accelerator does for each model that it prepares
        done.add(LAYOUT)
    warn_of(fit.plan, found, done)
    values = {name: value for name, value in found.settings.items() if name not in _OF_THE_LAUNCH}
    compiled: Any = values.pop("dynamo_config", None)
    sharded: Any = values.pop("fsdp_config", None)
    rows: Any = values.pop("parallelism_config", None)
    arguments: dict[str, Any] = {**values, "gradient_accumulation_steps": steps}
    if fit.answer.environment.is_host:
        arguments["cpu"] = True
    if compiled:
        plugin = import_package("accelerate.utils", "accelerate").TorchDynamoPlugin
        named = {key.removeprefix("dynamo_"): value for key, value in compiled.items()}
        arguments["dynamo_plugin"] = plugin(**named)
    if given:
        handler = import_package("accelerate.utils", "accelerate").DistributedDataParallelKwargs
        arguments["kwargs_handlers"] = [handler(**given)]
    if sharded:
        del arguments["gradient_accumulation_steps"]  # then every rank keeps a whole gradient until the last one
        arguments |= _sharded(fit.answer, sharded, rows)
    return arguments


def _sharded(answer: Answer, sharded: Mapping[str, Any], rows: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the arguments of a layout that shards, given these sections of a file for `accelerate launch`."""
    utilities = import_package("accelerate.utils", "accelerate")
    named = {key if key == "fsdp_version" else key.removeprefix("fsdp_"): value for key, value in sharded.items()}
    if gathers_in_bf16(answer):
        named["mixed_precision_policy"] = in_bf16(autocast=answer.plan.values.get("precision") == "bf16")[1]
    steps, each = answer.plan.accumulation_steps, divides_each_time(answer)
    found = {
        "fsdp_plugin": utilities.FullyShardedDataParallelPlugin(**named),
        "gradient_accumulation_plugin": utilities.GradientAccumulationPlugin(num_steps=steps, sync_each_batch=each),
    }
    if rows:
        sizes = {key.removeprefix("parallelism_config_"): size for key, size in rows.items()}
        found["parallelism_config"] = utilities.ParallelismConfig(**sizes)
    return found


def _check_launch(steps: int, ranks: int) -> None:
    """Refuses an environment that contradicts a plan of these accumulation steps and ranks."""
    text, (_, started) = os.environ.get(STEPS), launched_ranks()
    if text is not None and text != str(steps):
        raise UsageError(
            f"found {STEPS}={text} in the environment, which wins over the Accelerator's argument; the plan has "
            f"{steps} accumulation steps. Remove the variable, or set it to {steps}."
        )
    if ranks not in (1, started):
        raise UsageError(
            f"found {started} process{'es' * (started > 1)}, and the plan is for {ranks} ranks, so that the global "
            f"batch would be another. Start as many: accelerate launch --num_processes {ranks}, or torchrun."
        )
