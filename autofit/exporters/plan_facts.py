"""What several exporters ask of a plan: facts that no single value of a knob says."""

from collections.abc import Sequence

from autofit.core.answer import Answer
from autofit.core.block_order import read_order, written_order
from autofit.core.loading import Loading
from autofit.exporters.base import Settings, max_grad_norm
from autofit.workloads.micro_batch_weights import Weighing

CHECKPOINTED_BLOCKS, CHECKPOINT_ORDER = "checkpointed_blocks", "checkpoint_order"

_IGNORED = -100
"""Label that trainers of language models ignore and do not count."""


def checkpoints_every_block(answer: Answer) -> bool:
    """Returns whether the plan checkpoints all blocks of the model, as the switches of most trainers do.

    A plan file says how many blocks there are in the record of the strategy, or by the order of all blocks.
    """
    values = answer.plan.values
    known = (strategy.parts.get(CHECKPOINTED_BLOCKS) for strategy in answer.strategies)
    order, blocks = read_order(values.get(CHECKPOINT_ORDER)) or (), values.get(CHECKPOINTED_BLOCKS)
    return type(blocks) is int and blocks > 0 and blocks == next(filter(None, known), len(order))


def checkpointing_fields(answer: Answer, none: Settings, every: Settings) -> dict[str, Settings]:
    """Returns the settings of a target that checkpoints every block or none, by knob; {} if the plan does neither.

    Args:
        answer: the plan with its proof.
        none: settings for no block.
        every: settings for every block. The order of blocks then says nothing.
    """
    blocks = answer.plan.values.get(CHECKPOINTED_BLOCKS)
    if type(blocks) is int and blocks == 0:
        settings = none
    elif checkpoints_every_block(answer):
        settings = every
    elif blocks == "default":
        settings = {}
    else:
        return {}
    return {CHECKPOINTED_BLOCKS: settings, CHECKPOINT_ORDER: {}}


def blocks_in_words(order: Sequence[int], count: int) -> str:
    """Returns which blocks are checkpointed, as a part of a sentence."""
    return f"blocks {written_order(order[:count])}" if order else f"the first {count} blocks"


def optimizer_name(answer: Answer) -> str:
    """Returns the class of the measured optimizer. It may be any text, if the plan file comes from a stranger."""
    return answer.environment.settings.get("optimizer", "AdamW")


def dataloader_fields(answer: Answer) -> dict[str, object]:
    """Returns the fields of the loader's worker processes that Hugging Face made common; {} if they were not chosen."""
    loading = chosen_loading(answer)
    if loading is None:
        return {}
    pinned = {} if loading.pin_memory is None else {"dataloader_pin_memory": loading.pin_memory}
    return {
        "dataloader_num_workers": loading.workers,
        "dataloader_prefetch_factor": loading.prefetch_factor,
        **pinned,
    }


def chosen_loading(answer: Answer) -> Loading | None:
    """Returns how the loader is to be built, if its workers were chosen by measurement and differ from the user's."""
    loading = answer.proof.loading
    return None if loading is None or loading.kept or not loading.workers else loading


def clipping_caveat(answer: Answer, who: str, call: str) -> tuple[str, ...]:
    """Returns which line clips the gradients in a target that has no field for it.

    Args:
        answer: the plan with its proof.
        who: the target, as the subject of a sentence.
        call: the line to write before the update, with `{norm}` in place of the norm.
    """
    norm = max_grad_norm(answer)
    if norm is None:
        return ()
    line = call.format(norm=norm)
    return (f"the plan clips gradients to the L2 norm {norm}, which {who} does only in your code. Write {line}",)


def weighing_caveat(answer: Answer, who: str, unless: str = "") -> tuple[str, ...]:
    """Returns how the gradient differs in a trainer that divides each micro batch's loss by the accumulation steps.

    Args:
        answer: the plan with its proof.
        who: the trainer, as the subject of a sentence.
        unless: when it does not do so, as the end of a sentence that begins with a comma; "" for never.
    """
    weighing = _weighing(answer)
    if weighing is None:
        return ()
    if weighing.summed:
        steps = answer.plan.accumulation_steps
        return (
            f"the loss is a sum over samples, and {who} divides it by the {steps} accumulation steps{unless}: multiply "
            f"the loss by {steps}",
        )
    return (
        f"the loss is a mean over {weighing}, and the plan weights micro batches by it; {who} weights those of a step "
        f"alike{unless}. If micro batches differ in it, the gradient differs from the plan's",
    )


def label_count_caveat(answer: Answer, who: str) -> tuple[str, ...]:
    """Returns how the gradient differs in a trainer that weights each micro batch's mean loss by its number of labels.

    Args:
        answer: the plan with its proof.
        who: the trainer, as the subject of a sentence.
    """
    weighing = _weighing(answer)
    if weighing is None or weighing.ignored == _IGNORED:
        return ()
    labels = f"labels that are not {_IGNORED}"
    if weighing.summed:
        return (
            f"the loss is a sum over samples, and {who} trains on a mean over the {labels}: the gradient is smaller by "
            "their number",
        )
    return (
        f"the loss is a mean over {weighing}, and the plan weights micro batches by it; {who} weights those of a step "
        f"by their {labels}. If the two differ, the gradient differs from the plan's",
    )


def _weighing(answer: Answer) -> Weighing | None:
    """Returns the quantity by which a plan weights micro batches; None if by samples, or if a step has only one."""
    several = answer.plan.accumulation_steps > 1
    return Weighing.of(answer.environment.settings) if several else None
