"""Exporter to Accelerate: a file for `accelerate launch --config_file`, and the arguments that only code can give."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import yaml

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    FULL,
    GATHER,
    HYBRID,
    LAYOUT,
    MODES,
    OPTIMIZER,
    REPLICATED,
    RESHARD,
    SYNC,
    Settings,
    blocks_line,
    code_lines,
    divides_each_time,
    gather_policy,
    gathers_again,
    gathers_in_bf16,
    loader_comment,
    max_grad_norm,
    replicated_arguments,
    shards,
    unused_line,
    zero_line,
)

_FIXED: Settings = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "NO",
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 1,
}
"""A plan without a layout is measured on one device by one process."""
ROWS_SINCE = "1.10.1"
"""First version that can put ranks in rows."""
_RANKS = -1
"""Number of processes with which `accelerate launch` asks for --num_processes."""


def _layout(answer: Answer) -> KnobValue | None:
    """Returns the layout; None on the CPU, where `accelerate launch` starts one process, and nothing is sharded."""
    return None if answer.environment.is_host else answer.plan.values.get(LAYOUT)


def _grid(answer: Answer, version: TargetVersion) -> tuple[int, int] | None:
    """Returns the rows of ranks and how many divide the model, see `shards`; None on the CPU or without rows."""
    found = None if answer.environment.is_host else shards(answer)
    return found if found and (found[0] == 1 or version >= ROWS_SINCE) else None


def _compiled(mode: str, **more: object) -> Settings:
    return {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode, **more}}


class Accelerate(Exporter):
    """A file for `accelerate launch --config_file`. It holds precision, compilation and the layout of ranks.

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
    casts_otherwise: ClassVar[Mapping[KnobValue, str]] = dict.fromkeys(
        (FULL, HYBRID), "Accelerate gathers weights and averages gradients in 16 bits beside autocast"
    )

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys for each knob."""
        layout, found = _layout(answer), dict(super().fields(answer, version))
        ranks = answer.environment.ranks if answer.environment.ranks > 1 else _RANKS
        if layout in (REPLICATED, OPTIMIZER):
            found[LAYOUT] = {"distributed_type": "MULTI_GPU", "num_processes": ranks}
        elif grid := _grid(answer, version):
            how = {
                "fsdp_version": 2,
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_reshard_after_forward": gathers_again(answer),
            }
            found[LAYOUT] = {"distributed_type": "FSDP", "num_processes": ranks, "fsdp_config": how}
            if grid[0] > 1:
                sizes = zip(("replicate", "shard"), grid, strict=True)
                rows = {f"parallelism_config_dp_{name}_size": size for name, size in sizes}
                found[LAYOUT] = {**found[LAYOUT], "parallelism_config": rows}
            found |= {RESHARD: {}} if RESHARD in answer.plan.values else {}
        return found

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns the arguments of the DataLoader and the `Accelerator`, and lines of plain PyTorch."""
        lines, given = {**code_lines(answer), **super().by_hand(answer, version)}, replicated_arguments(answer)
        arguments = ", ".join(f"{name}={value}" for name, value in given.items())
        handler = f"Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({arguments})])"
        lines |= dict.fromkeys(given, handler)
        steps, layout, grid = answer.plan.values.get(ACCUMULATION_STEPS), _layout(answer), _grid(answer, version)
        if type(steps) is int and MICRO_BATCH_SIZE in lines:
            argument = f"gradient_accumulation_steps={steps}"
            if grid:  # by default every rank keeps a whole gradient until the last micro batch
                each = divides_each_time(answer)
                lines |= {} if each else {SYNC: "as for the accumulation steps"}
                plugin = f"GradientAccumulationPlugin(num_steps={steps}, sync_each_batch={each})"
                argument = f"gradient_accumulation_plugin={plugin}"
            lines[ACCUMULATION_STEPS] = (
                f"Accelerator({argument}), and with accelerator.accumulate(model): around each micro batch"
            )
        if layout == OPTIMIZER:
            lines[LAYOUT] = (
                f"{zero_line(answer)} once there is an Accelerator, and accelerator.prepare(model, optimizer, loader, "
                "device_placement=[True, False, True])"
            )
        elif grid:
            lines |= unused_line(answer, "model", "after accelerator.prepare")
            lines[LAYOUT] = blocks_line("fsdp_transformer_layer_cls_to_wrap")
            if gathers_in_bf16(answer):  # beside autocast it would average gradients in 16 bits too
                plugin = f"FullyShardedDataParallelPlugin(mixed_precision_policy={gather_policy(answer)})"
                lines[GATHER] = f"Accelerator(fsdp_plugin={plugin})"
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
        ranks = f"{self.comment}Pass --num_processes to accelerate launch. The batch is that of each process.\n"
        comments = ranks * (settings.get("num_processes") == _RANKS) + loader_comment(answer)
        return comments + yaml.safe_dump({**_FIXED, **on_host, **settings}, sort_keys=True)
