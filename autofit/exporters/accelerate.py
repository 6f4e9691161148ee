"""Exporter to Accelerate: a file for `accelerate launch --config_file`, and the arguments that only code can give."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import yaml

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.code_lines import code_lines, worker_arguments
from autofit.exporters.plan_facts import clipping_caveat, weighing_caveat
from autofit.exporters.target_version import TargetVersion

_FIXED: Settings = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "NO",
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 1,
}
"""A plan is measured on one device by one process. All keys exist since version 1.1."""
_CLIP = (
    "if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), {norm}), before optimizer.step()"
)
_REGIONAL = "1.7"
"""First version that can compile the repeated blocks alone."""


def _compiled(mode: str, **more: object) -> Settings:
    return {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode, **more}}


class Accelerate(Exporter):
    """A file for `accelerate launch --config_file`. It holds precision and compilation.

    Accelerate has no key for the batch: the user's code gives it to the DataLoader and to the `Accelerator`.
    """

    name: ClassVar[str] = "accelerate"
    filename: ClassVar[str] = "autofit_accelerate.yaml"
    infers: ClassVar[bool] = True
    package: ClassVar[str] = "accelerate"
    oldest: ClassVar[str] = "1.1"
    newest: ClassVar[str] = "1.15"
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {"mixed_precision": "no"},
            "bf16": {"mixed_precision": "bf16"},
            "fp16": {"mixed_precision": "fp16"},
        },
        "compile": {
            "off": {},
            "default": _compiled("default"),
            "blocks": _compiled("default", dynamo_use_regional_compilation=True),
            "max-autotune-no-cudagraphs": _compiled("max-autotune-no-cudagraphs"),
            "reduce-overhead": _compiled("reduce-overhead"),
        },
    }

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys of the file for each knob."""
        found = dict(super().fields(plan, answer, version))
        if plan.values.get("compile") == "blocks" and version < _REGIONAL:
            del found["compile"]
        return found

    def by_hand(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns the arguments of the DataLoader and the `Accelerator`, and lines of plain PyTorch."""
        lines = code_lines(plan, answer)
        steps = plan.values.get(ACCUMULATION_STEPS)
        if type(steps) is int and MICRO_BATCH_SIZE in lines:
            lines[ACCUMULATION_STEPS] = (
                f"Accelerator(gradient_accumulation_steps={steps}), and with accelerator.accumulate(model): around "
                "each micro batch"
            )
        return lines

    def caveats(self, answer: Answer, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan, and how to clip it."""
        clipping = clipping_caveat(answer, "Accelerate", _CLIP)
        return (*weighing_caveat(answer, "Accelerate"), *clipping)

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the file's text."""
        on_host: Settings = {"use_cpu": answer.environment.is_host}
        text = yaml.safe_dump({**_FIXED, **on_host, **settings}, sort_keys=True)
        workers = ", ".join(worker_arguments(answer))
        return f"# The loader was measured with DataLoader(..., {workers}).\n{text}" if workers else text
