"""Lines of plain PyTorch for knobs that a trainer leaves to the user's code."""

from collections.abc import Mapping

from autofit.core.answer import Answer
from autofit.core.block_order import read_order
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import has_fixed_batches
from autofit.exporters.plan_facts import (
    CHECKPOINT_ORDER,
    CHECKPOINTED_BLOCKS,
    blocks_in_words,
    checkpoints_every_block,
    chosen_loading,
    optimizer_name,
)

FLAGS: Mapping[KnobValue, str] = {
    "for-loop": "foreach=False, fused=False",
    "foreach": "foreach=True, fused=False",
    "fused": "foreach=False, fused=True",
}
"""Arguments of torch's optimizers by implementation of their update."""
_LAYOUTS: Mapping[KnobValue, str] = {
    "channels_last": "model.to(memory_format=torch.channels_last), and the same for each batch of images",
}
_TF32 = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'
"""Not by `fp32_precision`, since Lightning reads the older setting on CUDA, which then raises an error."""
_MODES: Mapping[KnobValue, str] = {
    "default": "",
    "max-autotune-no-cudagraphs": ', mode="max-autotune-no-cudagraphs"',
    "reduce-overhead": ', mode="reduce-overhead"',
}


def code_lines(plan: Plan, answer: Answer) -> dict[str, str]:
    """Returns for knobs of `plan` the line of plain PyTorch to write; knobs that one line cannot express are left out.

    No text of the plan is in a line but numbers and the name of an optimizer, if it is an identifier.
    """
    lines = {
        MICRO_BATCH_SIZE: loader_line(plan, answer),
        "precision": _TF32 if plan.values.get("precision") == "tf32" else None,
        "cudnn_benchmark": benchmark_line(plan),
        "memory_format": _LAYOUTS.get(plan.values.get("memory_format", "")),
        "optimizer_implementation": _optimizer_line(plan, answer),
        **dict.fromkeys((CHECKPOINTED_BLOCKS, CHECKPOINT_ORDER), _blocks_line(answer)),
    }
    return {knob: line for knob, line in lines.items() if knob in plan.values and line is not None}


def loader_line(plan: Plan, answer: Answer) -> str | None:
    """Returns the call of the DataLoader with the plan's batch and workers; None if the batch is not a number."""
    size, workers = plan.values.get(MICRO_BATCH_SIZE), worker_arguments(answer)
    if has_fixed_batches(answer):
        return f"your own loader{', with ' * bool(workers)}{', '.join(workers)}: its batches stay as they are"
    if type(size) is not int:
        return None
    return f"DataLoader(dataset, {', '.join([f'batch_size={size}', *workers])})"


def worker_arguments(answer: Answer) -> list[str]:
    """Returns the arguments of the DataLoader's worker processes, if they were chosen."""
    loading = chosen_loading(answer)
    if loading is None:
        return []
    arguments = [f"num_workers={loading.workers}"]
    if loading.pin_memory is not None:
        arguments.append(f"pin_memory={loading.pin_memory}")
    if loading.persistent_workers:
        arguments.append("persistent_workers=True")
    if loading.prefetch_factor is not None:
        arguments.append(f"prefetch_factor={loading.prefetch_factor}")
    return arguments


def compile_line(plan: Plan, place: str, name: str = "model") -> str | None:
    """Returns the call of torch.compile for a plan that compiles the whole model; None for every other value.

    Args:
        plan: the plan.
        place: where to write it, for the user.
        name: the name of the model there.
    """
    mode = _MODES.get(plan.values.get("compile", ""))
    return None if mode is None else f"{name} = torch.compile({name}{mode}), {place}"


def benchmark_line(plan: Plan) -> str | None:
    """Returns how to have cuDNN time its kernels; None if the plan does not."""
    on = plan.values.get("cudnn_benchmark") is True
    return "torch.backends.cudnn.benchmark = True, before the first step" if on else None


def padding_line(value: KnobValue | None) -> str | None:
    """Returns the argument of the data collator for a padding multiple; None if there is none."""
    return f"pass pad_to_multiple_of={value} to the data collator" if type(value) is int and value > 1 else None


def _optimizer_line(plan: Plan, answer: Answer) -> str | None:
    flags, name = FLAGS.get(plan.values.get("optimizer_implementation", "")), optimizer_name(answer)
    return None if flags is None else f"torch.optim.{name if name.isidentifier() else 'AdamW'}(..., {flags})"


def _blocks_line(answer: Answer) -> str | None:
    """Returns how to checkpoint the plan's blocks, by the model's own switch if it has one and these are all."""
    values = answer.plan.values
    count, order = values.get(CHECKPOINTED_BLOCKS), read_order(values.get(CHECKPOINT_ORDER, ""))
    line = "torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False) in place of block(...)"
    if type(count) is not int or count < 0 or order is None:
        return None
    if count == 0:
        return "switch the model's activation checkpointing off"
    if checkpoints_every_block(answer):
        switch = 'model.gradient_checkpointing_enable({"use_reentrant": False})'
        return f"{switch} for a model of transformers; else {line}, for every block"
    return f"{line}, for {blocks_in_words(order, count)}"
