"""Length grouping: batches of samples of similar length, so that fewer elements of a batch are padding."""

from contextlib import AbstractContextManager, nullcontext

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.units import format_duration
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.step import Draft

KNOB = "length_grouping"
LEAST_SAVED = 0.03
"""Minimum share of the elements of a batch that grouping must save: little more than what counts as a tie in a race."""
LEAST_SIZE = 16
"""Minimum number of samples of the batches whose padding is measured, if such batches can be made. A search may choose
larger batches than the user's, and a batch of one sample has no padding."""
LEAST_BATCHES = 8
"""Minimum number of batches of that size in one pass. With fewer, there are no windows of several batches."""
MOST_READING_S = 300.0
"""Maximum estimated time for reading all samples before the training, to learn their lengths."""
SAME_SHAPE = "all batches have the same shape"


class LengthGrouping(Strategy):
    """Another order of the samples: those of a batch have similar lengths.

    The order is made by `autofit.workloads.resized_samplers`. It follows the user's sampler and its generator, and each
    sample is in a pass as often as without this strategy. A draft does not change: only its batches do.
    """

    name = "length_grouping"
    about = "batches samples of similar length together, in another order than the loader's, so that less is padding"
    cost = "one reading of all samples before the training, to learn their lengths"
    effect = "changes the result"
    phase = Phase.BATCHING
    owns = {KNOB: False}
    not_on_ranks = "the ranks would have batches of different lengths, and wait for each other"
    same_memory = True  # the worst batch holds the longest samples in any order

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if lengths vary, the samples may be reordered, and that saves padding by measurement."""
        source, reason = facts.source, _refusal(facts)
        if source is None or reason is not None:
            return self.refuse(reason or SAME_SHAPE)
        size = _measured_size(source, facts)
        try:
            present, grouped = source.padding(size), source.by_length.padding(size)
        except Exception as error:  # noqa: BLE001  # the user's collate function may refuse a single sample
            return self.refuse(f"its gain could not be measured: {type(error).__name__}: {error}")
        saved = 1 - (1 - present) / (1 - grouped)
        if saved < LEAST_SAVED:
            return self.refuse(
                f"at {size} samples, {present:.1%} of a batch is padding, and {grouped:.1%} if samples of similar "
                f"length are batched together: {max(saved, 0.0):.1%} fewer elements, less than {LEAST_SAVED:.0%}"
            )
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether samples of similar length are batched together, in another order than the loader's",
            expected=(1.0, 1 / (1 - saved)),
            same_memory=(False, True),
        )
        return Offer((knob,))

    def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
        """Returns the source of batches of similar length.

        Raises:
            SpaceError: the samples of this loader stay in the user's batches.
        """
        if source.fixed_order:
            raise SpaceError(
                f"{KNOB}=True cannot be applied: {source.fixed_order}; expected a DataLoader over a data set with a "
                "length, with shuffle=True or False. Tune again with this loader."
            )
        return source.by_length

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Does not change the draft."""
        return nullcontext()


def _refusal(facts: Facts) -> str | None:
    """Returns why batches are not grouped by length, or None."""
    source = facts.source
    if source is None or not source.varies:
        return SAME_SHAPE
    if not facts.training:
        return "the outputs of an inference would come in another order"
    if source.fixed_order:
        return f"the samples stay in the loader's order: {source.fixed_order}"
    if facts.numerics != "any":
        return f"numerics={facts.numerics!r} keeps the order of the samples; numerics='any' allows another"
    size = _measured_size(source, facts)
    if source.length is not None and source.length < LEAST_BATCHES * size:
        return f"one pass has {source.length} samples, too few to choose batches of {size} from"
    seconds = source.reading_s
    if seconds > MOST_READING_S:
        most = format_duration(MOST_READING_S)
        return f"reading all samples to learn their lengths would take {format_duration(seconds)}, more than {most}"
    return None


def _measured_size(source: BatchSource, facts: Facts) -> int:
    """Returns the number of samples of the batches whose padding is measured."""
    most = LEAST_SIZE if source.length is None else source.length // LEAST_BATCHES
    return max(facts.micro_batch_size, min(LEAST_SIZE, most))
