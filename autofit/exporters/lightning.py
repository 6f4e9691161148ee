"""Exporter to Lightning: an overlay for LightningCLI, `fit --config base.yaml --config autofit_lightning.yaml`."""

from collections.abc import Mapping
from typing import ClassVar

import yaml

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    GATHER,
    HYBRID,
    LAYOUT,
    OPTIMIZER,
    REPLICATED,
    RESHARD,
    SYNC,
    UNUSED,
    VIEWS,
    Settings,
    code_lines,
    compile_line,
    gather_policy,
    gathers_again,
    gathers_in_bf16,
    loader_comment,
    replicated_arguments,
    shards,
    unused_line,
    worker_arguments,
    zero_line,
)

SHARDS_SINCE = "2.4"
"""First version that trains a model to which the user has applied FSDP2. `FSDPStrategy` is FSDP1."""
_REPLICATED = "lightning.pytorch.strategies.DDPStrategy"


class Lightning(Exporter):
    """An overlay that holds precision, accumulation, clipping and the strategy: arguments of the `Trainer`.

    The batch belongs to a data module or module, under a name that only the user knows.
    """

    name: ClassVar[str] = "lightning"
    filename: ClassVar[str] = "autofit_lightning.yaml"
    package: ClassVar[str] = "lightning"
    oldest: ClassVar[str] = "2.0"
    newest: ClassVar[str] = "2.6"
    counts: ClassVar[Mapping[str, str]] = {ACCUMULATION_STEPS: "accumulate_grad_batches"}
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {"precision": "32-true"},
            "bf16": {"precision": "bf16-mixed"},
            "fp16": {"precision": "16-mixed"},
        },
        "cudnn_benchmark": {False: {"benchmark": False}, True: {"benchmark": True}},
        "compile": {"off": {}},
    }
    clipping_key: ClassVar[str] = "gradient_clip_val"
    weighs_alike: ClassVar[str] = "Lightning"

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the arguments for each knob."""
        found, values = dict(super().fields(answer, version)), answer.plan.values
        if values.get(LAYOUT) in (REPLICATED, OPTIMIZER):
            given = replicated_arguments(answer)
            found[LAYOUT] = {"strategy": {"class_path": _REPLICATED, "init_args": given} if given else "ddp"}
            found |= {name: {} for name in (VIEWS, UNUSED) if name in values}
        return found

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns the arguments of the data module, and lines of plain PyTorch."""
        lines = code_lines(answer)
        if MICRO_BATCH_SIZE in lines:
            arguments = (f"batch_size={answer.plan.micro_batch_size}", *worker_arguments(answer))
            lines[MICRO_BATCH_SIZE] += (
                f" in train_dataloader, or under data: the names of your data module for {', '.join(arguments)}"
            )
        layout = answer.plan.values.get(LAYOUT)
        if layout == OPTIMIZER:
            lines[LAYOUT] = f"{zero_line(answer)} in configure_optimizers"
        elif shards(answer) and version >= SHARDS_SINCE and answer.plan.values.get("precision") != "fp16":
            lines |= _sharding_lines(answer)
        compiled = compile_line(answer, "in configure_model", "self.model")
        return lines if compiled is None else {**lines, "compile": compiled}

    def clipping(self, answer: Answer) -> Settings:
        """Returns the arguments of clipping. The algorithm is named, because the user's file may clip by value."""
        norm = super().clipping(answer)
        return {**norm, "gradient_clip_algorithm": "norm"} if norm else {}

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the overlay's text. A plan without accumulation also replaces that of the user's file."""
        text = yaml.safe_dump({"trainer": {"accumulate_grad_batches": 1, **settings}}, sort_keys=True)
        return loader_comment(answer) + text


def _sharding_lines(answer: Answer) -> dict[str, str]:
    """Returns what to write for FSDP2, which Lightning leaves to the user's module."""
    again, where = gathers_again(answer), "for fully_shard in configure_model"
    mesh, kept = 'mesh=self.device_mesh["data_parallel"]', "" if again else ", reshard_after_forward=False"
    rows, made, grid = answer.plan.values.get(LAYOUT) == HYBRID, "", shards(answer)
    if rows:  # those of the strategy have no rows
        mesh, names = "mesh=mesh", '("rows", "row")'
        made = f"mesh = init_device_mesh(self.device_mesh.device_type, {grid}, mesh_dim_names={names}), then "
    inside = outside = ""
    lines = {RESHARD: f"reshard_after_forward={again} {where}"}
    lines |= unused_line(answer, "self.model", "after fully_shard(self.model, ...)")
    if gathers_in_bf16(answer):
        inside, outside = (f", mp_policy={gather_policy(answer, block=each)}" for each in (True, False))
        lines[GATHER] = f"mp_policy=MixedPrecisionPolicy(...), as for the layout, {where}"
    if answer.plan.values.get(SYNC) is False:
        setting = "set_requires_all_reduce" if rows else "set_requires_gradient_sync"
        last = f"(batch_idx + 1) % {answer.plan.accumulation_steps} == 0 or self.trainer.is_last_batch"
        lines[SYNC] = f"self.model.{setting}({last}) at the start of training_step"
    lines[LAYOUT] = (
        "Trainer(strategy=ModelParallelStrategy(data_parallel_size=..., tensor_parallel_size=1)) with the number of "
        f"ranks, and in configure_model: {made}fully_shard(block, {mesh}, reshard_after_forward={again}{inside}) for "
        f"each block, then fully_shard(self.model, {mesh}{kept}{outside})"
    )
    return lines
