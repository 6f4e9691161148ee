"""Batching: samples per forward pass, and passes per optimizer step."""

from collections.abc import Iterator
from contextlib import contextmanager

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.space import Refusal, divisors
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.workloads.step import Draft
from autofit.workloads.update import WHOLE

MOST_TIMES_LARGER = 64
"""Maximum size of a free batch as a multiple of the baseline's. A larger one would change the training too much."""

FREE_SHARE = 1 / 50
"""Maximum size of a free batch as a share of the data set, so that an epoch has at least 50 steps."""

ABOUT = {
    MICRO_BATCH_SIZE: "samples per forward and backward pass",
    ACCUMULATION_STEPS: "forward and backward passes per optimizer step",
}
_UNCUT = Refusal(name="accumulation", reason=f"{WHOLE}, so its batch cannot be cut into micro batches")


class Batching(Strategy):
    """The micro batch size, and gradient accumulation over several micro batches.

    It does not change a draft: `TrainStep` receives the micro batches of a whole step.
    """

    name = "batching"
    about = "splits the batch of an optimizer step into micro batches whose gradients are added up"
    cost = "memory with large micro batches, time with small ones"
    effect = "rounding"
    phase = Phase.BATCHING
    owns = {MICRO_BATCH_SIZE: None, ACCUMULATION_STEPS: None}
    fits_update_fn = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the micro batch sizes and the corresponding accumulation steps.

        Inference has no accumulation and no global batch size.

        Raises:
            SpaceError: the global batch size cannot be kept with this data set or with the baseline.
        """
        if facts.training and facts.global_batch_size is not None:
            sizes = _dividing(facts, facts.global_batch_size)
            steps = tuple(sorted(facts.global_batch_size // size for size in sizes))
        else:
            sizes = _free(facts)
            steps = (facts.accumulation_steps if facts.training else 1,)
        baseline = (facts.micro_batch_size, facts.accumulation_steps if facts.training else 1)
        knobs = (
            Knob(name=MICRO_BATCH_SIZE, values=sizes, default=baseline[0], about=ABOUT[MICRO_BATCH_SIZE]),
            Knob(name=ACCUMULATION_STEPS, values=steps, default=baseline[1], about=ABOUT[ACCUMULATION_STEPS]),
        )
        fixed = Refusal(
            name=MICRO_BATCH_SIZE,
            reason=f"only the loader's batches of {facts.micro_batch_size} are run: batches of other sizes cannot be "
            "made from it. Pass a DataLoader over a data set with a length.",
        )
        refused = (*(() if facts.resizable else (fixed,)), *((_UNCUT,) if facts.update_fn else ()))
        return Offer(knobs, refused, _limit(facts) if facts.training and facts.global_batch_size is None else "")

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Checks the batch of `plan`. The draft does not change."""
        for knob in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS):
            value = plan.values.get(knob, 1)
            if type(value) is not int or value < 1:
                raise unknown_value(knob, value, "an integer of at least 1")
        reason = WHOLE if draft.loss.update is not None else "" if draft.optimizer else "inference has no updates"
        if reason and plan.accumulation_steps > 1:
            raise unknown_value(ACCUMULATION_STEPS, plan.accumulation_steps, f"1, since {reason}")
        yield


def _dividing(facts: Facts, total: int) -> tuple[int, ...]:
    """Returns the micro batch sizes that divide the global batch size `total`, ascending.

    The global batch may exceed the data set: its micro batches then come from several epochs. A micro batch cannot hold
    more samples than the data set has.
    """
    baseline_size = facts.micro_batch_size
    if total < 1:
        raise SpaceError(
            f"found global_batch_size={total}; expected at least 1. Pass the number of samples per optimizer step."
        )
    if baseline_size * facts.accumulation_steps != total:
        raise SpaceError(
            f"found micro batch {baseline_size} times {facts.accumulation_steps} accumulation steps, which is not the "
            f"global batch {total} that must be kept exactly; expected a loader whose batch size divides {total}. "
            "Change the loader's batch size or global_batch_size."
        )
    if not facts.resizable or facts.update_fn:
        return (baseline_size,)
    most = total if facts.dataset_size is None else facts.dataset_size
    # The baseline is always in the space, even with a sampler that repeats samples.
    return tuple(size for size in divisors(total) if (size <= most and _divides(size, facts)) or size == baseline_size)


def _free(facts: Facts) -> tuple[int, ...]:
    """Returns the micro batch sizes to try if the batch is free, ascending, with the baseline's among them."""
    baseline_size = facts.micro_batch_size
    if not facts.resizable:
        return (baseline_size,)
    most = MOST_TIMES_LARGER * baseline_size
    if facts.dataset_size is not None:
        most = min(most, facts.dataset_size)
    if facts.training:
        most = min(most, _most_per_step(facts) // facts.accumulation_steps)
    return tuple(sorted({*(size for size in ladder(most) if _divides(size, facts)), baseline_size}))


def _divides(size: int, facts: Facts) -> bool:
    """Returns whether batches of this size can be cut without a smaller remainder."""
    return facts.cut_from is None or facts.cut_from % size == 0


def _most_per_step(facts: Facts) -> int:
    """Returns the maximum number of samples per optimizer step of a rank: the user's limit, or a share of the data set.

    The baseline's batch is always allowed.
    """
    baseline_batch = facts.micro_batch_size * facts.accumulation_steps
    if facts.max_global_batch_size is not None:
        return facts.max_global_batch_size // facts.ranks
    if facts.dataset_size is None:
        return MOST_TIMES_LARGER * baseline_batch
    return max(int(facts.dataset_size * FREE_SHARE) // facts.ranks, baseline_batch)


def _limit(facts: Facts) -> str:
    """Returns what limits the size of a free batch and how to raise it; "" without such a limit."""
    most = _most_per_step(facts)
    largest = MOST_TIMES_LARGER * facts.micro_batch_size * facts.accumulation_steps
    if facts.dataset_size is not None:
        largest = min(largest, facts.dataset_size)
    if not facts.resizable or most > largest:
        return ""
    if facts.max_global_batch_size is not None:
        return "limited by the given max_global_batch_size; a larger one allows more"
    if facts.dataset_size is None:
        return ""
    share = f"1/{round(1 / FREE_SHARE)} of your data set"
    if most > facts.dataset_size * FREE_SHARE:
        share = f"the baseline's batch, which is more than {share}"
    return f"limited by {share}; max_global_batch_size raises it"


def ladder(most: int) -> tuple[int, ...]:
    """Returns the usual batch sizes up to `most`, ascending. `most` itself is not added.

    These are 1, 2, 4, multiples of 8 up to 64, multiples of 32 up to 256, and from there four to each doubling. If the
    memory limit lies between two sizes, the smaller one is at most a fifth below it. At such sizes the fixed cost of a
    step is already small.
    """
    sizes, step = [1, 2, 4, *range(8, 65, 8), *range(96, 257, 32)], 64
    while sizes[-1] + step <= most:
        sizes += [sizes[-1] + step * count for count in range(1, 5)]
        step *= 2
    return tuple(size for size in sizes if size <= most)
