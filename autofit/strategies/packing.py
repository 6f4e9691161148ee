"""Packing: the layers of a language model run on fewer rows, since short samples share one."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

from autofit.core.errors import WorkloadError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.packable_models import lack, mixing, packable_models, packing
from autofit.strategies.packed_rows import packed_rows, rows_of, texts_of
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.lengths import IDS, MASK, elements
from autofit.workloads.step import Draft

KNOB = "packing"
LEAST_SAVED = 0.03
"""Minimum share of the rows that packing must save: little more than what counts as a tie in a race."""
MEASURED_SIZE, MEASURED_BATCHES = 16, 8
"""Number of samples of the batches whose rows are counted, unless the user's are larger or none can be made, and number
of these batches."""
GATE_SIZES = (4, 8, 16)
"""Numbers of samples of the batch that the gate compares: the smallest with which a batch can be packed."""
GATE_SAMPLES = 128
"""Number of samples of these batches. The widest that can be packed is compared: some models treat long samples in
another way."""


class Packing(Strategy):
    """Packs the tokens of a batch before the first layer of a model of `transformers`, and unpacks its hidden states.

    The model's head, the loss and everything else see the user's batch. Attention keeps the samples of a row apart, by
    the positions of their tokens in a decoder and by a mask in an encoder. A batch that cannot be packed runs as
    without this strategy. Evaluation runs unpacked. A packed call returns no cache.
    """

    name = "packing"
    about = "runs the layers of a language model on fewer rows: short samples share one instead of being padded"
    cost = "a few milliseconds of the host per forward pass; random numbers of dropout are drawn in another way"
    effect = "rounding"
    phase = Phase.MODULES
    owns = {KNOB: False}
    not_on_ranks = "each rank would pack its own samples, and the ranks would be uneven"
    gated = True
    same_memory = True  # in the worst batch no sample shares a row (`batches`)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if lengths vary, a model of `transformers` can run packed rows, and that saves some."""
        reason = _refusal(facts)
        if reason is not None or facts.source is None:
            return self.refuse(reason or "there are no batches to pack")
        source, size = facts.source, facts.source.user_batch_size
        if source.resizable:
            limits = (facts.global_batch_size, source.max_size, source.length, MEASURED_SIZE)
            size = max(facts.micro_batch_size, min(limit for limit in limits if limit))
        counted = [rows_of(batch) for batch in source.typical(size, MEASURED_BATCHES)]
        if not all(total for _, total in counted):
            return self.refuse(f"the batches do not name their {IDS} and {MASK}, which say what is padding")
        share = sum(needed for needed, _ in counted) / sum(total for _, total in counted)
        if 1 - share < LEAST_SAVED:
            return self.refuse(
                f"the tokens of {size} samples need {share:.0%} of their rows, so packing would save less than "
                f"{LEAST_SAVED:.0%}"
            )
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether short samples share a row in the layers of a language model",
            expected=(1.0, 1 / share),
            same_memory=(False, True),
        )
        return Offer((knob,))

    def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
        """Returns a source whose worst batch cannot be packed: of other lengths, as many samples may need more rows."""
        return source.filled

    def gate_batch(self, facts: Facts) -> Counted | None:
        """Returns a small batch of the user's that needs fewer rows.

        Raises:
            WorkloadError: none of a few does.
        """
        source = facts.source
        if source is None:
            return None
        most = source.max_size or max(GATE_SIZES)
        sizes = [size for size in GATE_SIZES if size <= most] if source.resizable else [source.user_batch_size]
        for size in sizes:
            batches = source.typical(size, max(GATE_SAMPLES // size, 1))
            packed = [batch for batch in batches if operator.lt(*rows_of(batch))]
            if packed:
                return Counted(max(packed, key=elements), size)
        raise WorkloadError(
            f"no batch of up to {max(sizes, default=0)} of {GATE_SAMPLES} samples needs fewer rows; expected one; "
            "shuffle the data, so that short and long samples meet"
        )

    def objection(self, facts: Facts, batch: Counted) -> str:
        """Returns that a model did not run packed rows, or that it mixed the samples of a row; "" if it did not."""
        texts = [(ids, mask) for ids, mask in texts_of(batch.batch) if packed_rows(mask.cpu()) is not None]
        found = (mixing(model, *text) for model, text in product(packable_models(facts.model), texts))
        return next(filter(None, found), "")

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Packs the batches of each language model in the user's model.

        Raises:
            SpaceError: the value is unknown, or the model cannot run packed rows.
        """
        if reason := lack(draft.model):
            raise unknown_value(KNOB, True, f"False, since {reason}")
        with packing(list(packable_models(draft.model))):
            yield


def _refusal(facts: Facts) -> str | None:
    """Returns why samples are not packed, or None."""
    source = facts.source
    if source is None or not source.varies:
        return "all batches have the same shape; if they are padded to it, pad each only to its longest sample"
    if not facts.training:
        return "the outputs of an inference would differ at padding"
    if facts.numerics == "exact":
        return "numerics='exact' keeps the arithmetic; numerics='mixed' allows packing, checked by its gradient"
    return lack(facts.model)
