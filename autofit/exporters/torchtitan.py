"""Exporter to torchtitan: maps a plan to overrides of its configuration on the command line."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.plan_facts import (
    CHECKPOINTED_BLOCKS,
    checkpointing_fields,
    label_count_caveat,
    weighing_caveat,
)
from autofit.exporters.target_version import TargetVersion

SECTIONS_SINCE = "0.2"
"""First version with a section `compile`, with `training.dtype`, and with a memory budget for compiled code."""
COUNTED_SINCE = "0.2.2"
"""First version that divides the summed loss of a step by its labels, over all devices. Earlier ones divide the mean
loss of each micro batch by the accumulation steps."""
SUBCOMMANDS_SINCE = "0.3"
"""First version in which a kind of activation checkpointing is chosen by a subcommand, and in which the optimizer does
not step in the backward pass."""

TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""Variable that switches TF32 on for products of matrices; torch reads it. Convolutions use TF32 by default."""
_SUBCOMMAND = "activation_checkpoint:"

_PRECISIONS: Mapping[KnobValue, Settings] = {
    "fp32": {"training.mixed_precision_param": "float32"},
    "tf32": {TF32: "1", "training.mixed_precision_param": "float32"},
    "bf16": {"training.mixed_precision_param": "bfloat16"},
}
_SHARES: Mapping[KnobValue, float] = {"half": 0.5, "fifth": 0.2}


class Torchtitan(Exporter):
    """A fragment of a bash script that sets the array AUTOFIT_OVERRIDES, which is passed to torchtitan's training.

    For example: `source autofit_torchtitan.sh && ./run_train.sh "${AUTOFIT_OVERRIDES[@]}"`. In version 0.3 nothing may
    follow the overrides, because the subcommand at their end would take it.

    torchtitan checkpoints every transformer block or none, and compiles each block.
    """

    name: ClassVar[str] = "torchtitan"
    filename: ClassVar[str] = "autofit_torchtitan.sh"
    package: ClassVar[str] = "torchtitan"
    oldest: ClassVar[str] = "0.1"
    newest: ClassVar[str] = "0.3"
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "optimizer_implementation": {
            "default": {},
            **{name: {"optimizer.implementation": name} for name in ("for-loop", "foreach", "fused")},
        },
        "recomputed_operators": {"all": {}},
        "activation_budget": {"default": {}},
    }
    clipping_key: ClassVar[str] = "training.max_norm"  # its default is the norm 1.0

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the overrides for each knob."""
        known: dict[str, Callable[[Plan, TargetVersion], Settings | None]] = {
            MICRO_BATCH_SIZE: _batch,
            ACCUMULATION_STEPS: lambda plan, _: None if _batch(plan, version) is None else {},  # see _batch
            "precision": _precision,
            "compile": _compiled,
            "optimizer_in_backward": _in_backward,
        }
        found = {knob: given(plan, version) for knob, given in known.items()} | _checkpointing(answer, version)
        chosen = {knob: settings for knob, settings in found.items() if settings is not None and knob in plan.values}
        return {**super().fields(plan, answer, version), **chosen}

    def caveats(self, answer: Answer, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan. Its data sets shift the labels."""
        if version >= COUNTED_SINCE:
            return label_count_caveat(answer, "torchtitan")
        return weighing_caveat(answer, f"torchtitan before {COUNTED_SINCE}")

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the text of the fragment."""
        variables = [f"export {name}={value}\n" for name, value in settings.items() if name == TF32]
        options = {name: value for name, value in settings.items() if name != TF32}
        subcommand = {name: options.pop(name) for name in list(options) if name.startswith(_SUBCOMMAND)}
        below = {name: options.pop(name) for name in list(options) if subcommand and name.startswith(_SUBCOMMAND[:-1])}
        words = [_words(*option) for option in (*options.items(), *subcommand.items(), *below.items())]
        return "".join(
            [
                f"{self.comment}The batch is that of one device. With N data-parallel devices, multiply "
                "training.global_batch_size by N.\n",
                f"{self.comment}Use: source {self.filename}, then pass ",
                '"${AUTOFIT_OVERRIDES[@]}" to torchtitan after all other arguments.\n',
                *variables,
                "AUTOFIT_OVERRIDES=(\n",
                *(f"  {shlex.join(option)}\n" for option in words),
                ")\n",
            ]
        )


def _words(name: str, value: object) -> list[str]:
    """Returns the words of an override. A subcommand is one word; so is a switch, whose name says whether it is on."""
    if name.startswith(_SUBCOMMAND):
        return [name]
    if type(value) is bool:
        section, _, field = name.rpartition(".")
        return [f"--{section}.{field if value else f'no_{field}'}"]
    return [f"--{name}", str(value)]


def _batch(plan: Plan, version: TargetVersion) -> Settings | None:
    """Returns the batch of a pass, and that of a step, from which torchtitan derives the number of passes."""
    size, steps = plan.values.get(MICRO_BATCH_SIZE), plan.values.get(ACCUMULATION_STEPS, 1)
    if type(size) is not int or type(steps) is not int or size < 1 or steps < 1:
        return None
    return {"training.local_batch_size": size, "training.global_batch_size": size * steps}


def _precision(plan: Plan, version: TargetVersion) -> Settings | None:
    """Returns the type of autocast. The weights stay in float32, as they always do before `training.dtype`."""
    settings = _PRECISIONS.get(plan.values.get("precision", ""))
    return {"training.dtype": "float32", **settings} if settings and version >= SECTIONS_SINCE else settings


def _compiled(plan: Plan, version: TargetVersion) -> Settings | None:
    value = plan.values.get("compile")
    if value not in ("off", "blocks"):
        return None
    if version < SECTIONS_SINCE:
        return {"training.compile": value == "blocks"}
    return {"compile.enable": True, "compile.components": "model"} if value == "blocks" else {"compile.enable": False}


def _in_backward(plan: Plan, version: TargetVersion) -> Settings | None:
    value = plan.values.get("optimizer_in_backward")
    if type(value) is not bool or (value and version >= SUBCOMMANDS_SINCE):
        return None
    return {} if version >= SUBCOMMANDS_SINCE else {"optimizer.early_step_in_backward": value}


def _checkpointing(answer: Answer, version: TargetVersion) -> dict[str, Settings]:
    """Returns the overrides of what is recomputed: by default torchtitan checkpoints a part of the operators."""
    plan = answer.plan
    budget = plan.values.get("activation_budget", "default")
    found = checkpointing_fields(answer, _kind("none", version), _kind("full", version))
    if budget in _SHARES and plan.values.get("compile") == "blocks" and version >= SECTIONS_SINCE:
        found[CHECKPOINTED_BLOCKS] = {}
        found["activation_budget"] = {
            **_kind("memory_budget", version),
            "activation_checkpoint.memory_budget": _SHARES[budget],
        }
    return found


def _kind(kind: str, version: TargetVersion) -> Settings:
    if version >= SUBCOMMANDS_SINCE:
        return {f"{_SUBCOMMAND}{kind}": True}
    return {"activation_checkpoint.mode": kind}
