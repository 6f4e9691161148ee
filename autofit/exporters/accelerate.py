"""Exporter to Accelerate: a file for `accelerate launch --config_file`, and the arguments that only code can give."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import yaml

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import MODES, Settings, code_lines, loader_comment, max_grad_norm

_FIXED: Settings = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "NO",
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 1,
}
"""A plan is measured on one device by one process."""


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
    oldest: ClassVar[str] = "1.7"  # the first version that can compile the repeated blocks alone
    newest: ClassVar[str] = "1.15"
    weighs_alike: ClassVar[str] = "Accelerate"
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {"mixed_precision": "no"},
            "bf16": {"mixed_precision": "bf16"},
            "fp16": {"mixed_precision": "fp16"},
        },
        "compile": {
            "off": {},
            "blocks": _compiled("default", dynamo_use_regional_compilation=True),
            **{mode: _compiled(mode) for mode in MODES},
        },
    }

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns the arguments of the DataLoader and the `Accelerator`, and lines of plain PyTorch."""
        lines = code_lines(answer)
        steps = answer.plan.values.get(ACCUMULATION_STEPS)
        if type(steps) is int and MICRO_BATCH_SIZE in lines:
            lines[ACCUMULATION_STEPS] = (
                f"Accelerator(gradient_accumulation_steps={steps}), and with accelerator.accumulate(model): around "
                "each micro batch"
            )
        return lines

    def caveats(self, answer: Answer) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan, and how to clip it."""
        norm, found = max_grad_norm(answer), super().caveats(answer)
        if norm is None:
            return found
        return (
            *found,
            f"the plan clips gradients to the L2 norm {norm}, which Accelerate does only in your code. Write if "
            f"accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), {norm}), before "
            "optimizer.step()",
        )

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the file's text."""
        on_host: Settings = {"use_cpu": answer.environment.is_host}
        return loader_comment(answer) + yaml.safe_dump({**_FIXED, **on_host, **settings}, sort_keys=True)
