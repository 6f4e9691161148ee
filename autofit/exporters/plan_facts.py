"""What exporters ask of a plan: facts that no single value of a knob says, and lines of plain PyTorch."""

import math
from collections.abc import Mapping

from autofit.core.answer import Answer
from autofit.core.environment import ROWS
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue
from autofit.workloads.micro_batch_weights import Weighing

Settings = Mapping[str, object]
"""Settings of a target, by key."""
CHECKPOINTED_BLOCKS = "checkpointed_blocks"
LAYOUT, VIEWS, RESHARD, GATHER = "layout", "gradient_as_bucket_view", "reshard_after_forward", "gather_precision"
SYNC, UNUSED = "sync_each_batch", "find_unused_parameters"
"""Knobs of the ranks that train together. The batch of such a plan is that of each rank."""
REPLICATED, OPTIMIZER, FULL, HYBRID, TENSOR = "replicated", "optimizer", "full", "hybrid", "tensor"
MEASURED_WITH: Mapping[KnobValue, str] = {
    REPLICATED: "DistributedDataParallel",
    OPTIMIZER: "ZeroRedundancyOptimizer",
    FULL: "fully_shard",
    HYBRID: "fully_shard on rows of ranks",
    TENSOR: "distribute_module by the model's own plan",
}
"""What divides a training among ranks in a plan, by layout."""
BF16 = "bf16"


def has_fixed_batches(answer: Answer) -> bool:
    """Returns whether the batches of the user's loader are those of the plan, because no others can be made."""
    sizes = (each.reason for each in answer.refused if each.name == MICRO_BATCH_SIZE)
    return any(not reason.startswith("pinned to ") for reason in sizes)  # others could be made, but were not wanted


def max_grad_norm(answer: Answer) -> float | None:
    """Returns the norm to which the measured training clips its gradients; None if it does not, or only infers."""
    try:
        norm = float(answer.environment.settings.get("max_grad_norm", ""))
    except ValueError:
        return None
    return norm if norm > 0 and math.isfinite(norm) and not answer.environment.is_inference else None


def changes_of(answer: Answer) -> dict[str, KnobValue]:
    """Returns the values that the plan changes. A layout is always one, and what it needs, since the model has none."""
    values = answer.plan.values
    divided = {LAYOUT: values[LAYOUT]} if LAYOUT in values else {}
    divided |= {UNUSED: True} if values.get(UNUSED) is True and values.get(LAYOUT) != TENSOR else {}
    return {**answer.plan.changes_from(answer.baseline.plan), **divided}


def looks_for_unused(answer: Answer) -> bool:
    """Returns whether ranks that replicate the model look for parameters without a gradient in each pass."""
    values = answer.plan.values
    return values.get(UNUSED) is True and values.get(LAYOUT) not in (FULL, HYBRID, TENSOR)


def unused_line(answer: Answer, model: str, place: str) -> dict[str, str]:
    """Returns what lets ranks of a sharded model leave out different parameters, by knob; {} without shards."""
    if answer.plan.values.get(UNUSED) is not True or not shards(answer):
        return {}
    return {UNUSED: f"{model}.set_reduce_scatter_unused_params(True) {place}, with torch 2.13"}


def replicated_arguments(answer: Answer) -> dict[str, bool]:
    """Returns the arguments of `DistributedDataParallel` that differ from torch's."""
    asked = {VIEWS: answer.plan.values.get(VIEWS) is True, UNUSED: looks_for_unused(answer)}
    return {name: True for name, value in asked.items() if value}


def is_divided(answer: Answer) -> bool:
    """Returns whether several ranks train together, so that the plan's batch is that of each of them."""
    return LAYOUT in answer.plan.values


def shards(answer: Answer) -> tuple[int, int] | None:
    """Returns how many rows of ranks replicate a sharded model, and how many divide it; None if nothing is sharded.

    A layout without rows has one. 0 ranks: as many as there are. None too if the number of rows is not known.
    """
    layout, place = answer.plan.values.get(LAYOUT), answer.environment
    ranks, rows = place.ranks, place.settings.get(ROWS, "")
    if layout == HYBRID and rows in map(str, range(2, ranks)) and ranks % int(rows) == 0:
        return int(rows), ranks // int(rows)
    return (1, ranks if ranks > 1 else 0) if layout == FULL else None


def divides_each_time(answer: Answer) -> bool:
    """Returns whether sharded gradients are divided after each micro batch. Rows of ranks always do."""
    return answer.plan.values.get(SYNC) is not False or answer.plan.values.get(LAYOUT) == HYBRID


def gathers_again(answer: Answer) -> bool:
    """Returns whether weights that were gathered in the forward pass are released, as is the default of the knob."""
    return answer.plan.values.get(RESHARD) is not False


def gathers_in_bf16(answer: Answer) -> bool:
    """Returns whether sharded weights are gathered in bfloat16."""
    return answer.plan.values.get(GATHER) == BF16


def gather_policy(answer: Answer, *, block: bool = False) -> str:
    """Returns the policy of `fully_shard` for a model that is gathered in bfloat16, or for a block of it."""
    cast = "cast_forward_inputs=False" if answer.plan.values.get("precision") == BF16 else "output_dtype=torch.float32"
    more = "" if block else f", {cast}"
    return f"MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32{more})"


def zero_line(answer: Answer) -> str:
    """Returns the call of the optimizer of which each rank has a part."""
    name = f"torch.optim.{optimizer_name(answer)}"
    return f"ZeroRedundancyOptimizer(model.parameters(), optimizer_class={name}, ...) in place of {name}(...)"


def blocks_line(key: str) -> str:
    """Returns what names the blocks that a trainer of Hugging Face shards one at a time; `key` is that of its field."""
    return (
        f"name the class of the blocks as {key} in fsdp_config, unless the model has _no_split_modules, as those of "
        "transformers do"
    )


def averaged_each_time(answer: Answer) -> Settings:
    """Returns the field of Hugging Face that says whether gradients are divided after each micro batch, as in a plan.

    By default every rank keeps a whole gradient until the last micro batch of a step.
    """
    if answer.plan.accumulation_steps == 1:
        return {}
    return {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": divides_each_time(answer)}}}


def optimizer_name(answer: Answer) -> str:
    """Returns the class of the measured optimizer; AdamW if it has no name that Python could have."""
    name = answer.environment.settings.get("optimizer", "AdamW")
    return name if name.isidentifier() else "AdamW"


def weighing_of(answer: Answer) -> Weighing | None:
    """Returns the quantity by which a plan weights micro batches; None if by samples, or if a step has only one."""
    several = answer.plan.accumulation_steps > 1
    return Weighing.of(answer.environment.settings) if several else None


def checkpoints_every_block(answer: Answer) -> bool:
    """Returns whether the plan checkpoints all blocks of the model, as the switches of most trainers do.

    A plan file says how many blocks there are in the record of the strategy.
    """
    known = (strategy.parts.get(CHECKPOINTED_BLOCKS) for strategy in answer.strategies)
    blocks = answer.plan.values.get(CHECKPOINTED_BLOCKS)
    return type(blocks) is int and blocks > 0 and blocks == next(filter(None, known), 0)


def checkpointing_fields(answer: Answer, none: Settings, every: Settings) -> dict[str, Settings]:
    """Returns the settings for no or every block, by knob, of a target that can do only these; {} for other plans."""
    blocks = answer.plan.values.get(CHECKPOINTED_BLOCKS)
    if type(blocks) is int and blocks == 0:
        return {CHECKPOINTED_BLOCKS: none}
    if checkpoints_every_block(answer):
        return {CHECKPOINTED_BLOCKS: every}
    return {CHECKPOINTED_BLOCKS: {}} if blocks == "default" else {}


def worker_settings(answer: Answer) -> dict[str, object]:
    """Returns the settings of the DataLoader's worker processes; {} if they were not chosen by measurement."""
    loading = answer.proof.loading
    if loading is None or loading.kept or not loading.workers:
        return {}
    return {name: value for name, value in loading.arguments.items() if value is not None}


def worker_arguments(answer: Answer) -> list[str]:
    """Returns the arguments of the DataLoader's worker processes that differ from torch's, if they were chosen."""
    settings = worker_settings(answer).items()
    return [f"{name}={value}" for name, value in settings if (name, value) != ("persistent_workers", False)]


def loader_comment(answer: Answer) -> str:
    """Returns the workers of the loader as a comment, for a file that has no keys for them; "" without any."""
    workers = ", ".join(worker_arguments(answer))
    return f"# The loader was measured with DataLoader(..., {workers}).\n" if workers else ""


_ADAMW: Mapping[tuple[KnobValue, bool], str] = {
    ("fused", True): "adamw_torch_fused",
    ("fused", False): "adamw_torch_fused",
    ("foreach", False): "adamw_torch",
    ("for-loop", True): "adamw_torch",
}
"""Name of AdamW by implementation, and whether it runs on the host. `adamw_torch` is torch's default: a loop on the
host, else foreach. Other implementations have no name."""


def adamw_fields(answer: Answer, key: str) -> dict[str, Settings]:
    """Returns the field with the name that Hugging Face gives the measured AdamW; {} if it has none."""
    implementation = answer.plan.values.get("optimizer_implementation", "")
    name = _ADAMW.get((implementation, answer.environment.is_host))
    return {} if name is None or optimizer_name(answer) != "AdamW" else {"optimizer_implementation": {key: name}}


FLAGS: Mapping[KnobValue, str] = {
    "for-loop": "foreach=False, fused=False",
    "foreach": "foreach=True, fused=False",
    "fused": "foreach=False, fused=True",
}
"""Arguments of torch's optimizers by implementation of their update."""
_LAYOUTS: Mapping[KnobValue, str] = {
    "channels_last": "model.to(memory_format=torch.channels_last), and the same for each batch of images",
}
_BENCHMARK = "torch.backends.cudnn.benchmark = True, before the first step"
_TF32 = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'
"""Not by `fp32_precision`, since Lightning reads the older setting on CUDA, which then raises an error."""
MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")
"""Modes of `torch.compile` for the whole model, by the values of the knob."""


def code_lines(answer: Answer) -> dict[str, str]:
    """Returns for each knob the line of plain PyTorch to write; knobs that one line cannot express are left out.

    No text of the plan is in a line but numbers and the name of an optimizer, if it is an identifier.
    """
    values = answer.plan.values
    flags = FLAGS.get(values.get("optimizer_implementation", ""))
    lines = {
        MICRO_BATCH_SIZE: loader_line(answer),
        "precision": _TF32 if values.get("precision") == "tf32" else None,
        "attention": 'load the model with attn_implementation="sdpa"' if values.get("attention") == "sdpa" else None,
        "cudnn_benchmark": _BENCHMARK if values.get("cudnn_benchmark") is True else None,
        "memory_format": _LAYOUTS.get(values.get("memory_format", "")),
        "optimizer_implementation": flags and f"torch.optim.{optimizer_name(answer)}(..., {flags})",
        CHECKPOINTED_BLOCKS: _blocks_line(answer),
    }
    return {knob: line for knob, line in lines.items() if knob in values and line is not None}


def loader_line(answer: Answer) -> str | None:
    """Returns the call of the DataLoader with the plan's batch and workers; None if the batch is not a number."""
    size, workers = answer.plan.values.get(MICRO_BATCH_SIZE), worker_arguments(answer)
    if has_fixed_batches(answer):
        return f"your own loader{', with ' * bool(workers)}{', '.join(workers)}: its batches stay as they are"
    if type(size) is not int:
        return None
    return f"DataLoader(dataset, {', '.join([f'batch_size={size}', *workers])})"


def compile_line(answer: Answer, place: str, name: str = "model") -> str | None:
    """Returns the call of torch.compile, and the place for it, if the plan compiles the whole model; else None."""
    mode = answer.plan.values.get("compile")
    if mode not in MODES:
        return None
    given = "" if mode == "default" else f', mode="{mode}"'
    return f"{name} = torch.compile({name}{given}), {place}"


def _blocks_line(answer: Answer) -> str | None:
    """Returns how to checkpoint the plan's blocks, by the model's own switch if it has one and these are all."""
    count = answer.plan.values.get(CHECKPOINTED_BLOCKS)
    line = "torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False) in place of block(...)"
    if type(count) is not int or count < 0:
        return None
    if count == 0:
        return "switch the model's activation checkpointing off"
    if checkpoints_every_block(answer):
        switch = 'model.gradient_checkpointing_enable({"use_reentrant": False})'
        return f"{switch} for a model of transformers; else {line}, for every block"
    return f"{line}, for the first {count} blocks"
