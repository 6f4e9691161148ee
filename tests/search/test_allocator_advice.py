"""Advice on expandable segments is given where a replay explains the measured memory, with the figures of a replay."""

from collections.abc import Iterator

import pytest

from autofit.core.account import Account
from autofit.core.knob import Knob
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.estimators.base import Estimator
from autofit.estimators.measured import Measured
from autofit.estimators.traced import Traced
from autofit.memory.peak import memory_use
from autofit.memory.trace import Kind, Trace
from autofit.search.allocator_advice import AllocatorAdvice
from tests.estimators.tracer import MIB, plan
from tests.memory.traces import Script

OUTSIDE = 100 * MIB
PLAIN = Account(allocator="caching", outside_bytes=OUTSIDE)
SIZES = (2, 4, 8, 16)
KNOB = Knob(name="precision", values=("fp32", "bf16"), default="fp32", about="number format")
SPACE = SearchSpace(SpaceFacts(knobs=(KNOB,), sizes=SIZES, baseline=plan(2, precision="fp32"), global_batch_size=None))


def rising(wanted: Plan) -> Trace:
    """A step whose temporaries grow: plain segments of smaller ones are of no use for the larger ones."""
    script = Script(micro_batch_size=wanted.micro_batch_size)
    script.take(40 * MIB, Kind.PARAMETER)
    script.mark("step 1 forward")
    for number in range(1, 5):
        script.moment(10 * number * wanted.micro_batch_size * MIB)
    return script.trace()


def level(wanted: Plan) -> Trace:
    """A step whose temporaries are of one size."""
    script = Script(micro_batch_size=wanted.micro_batch_size)
    script.take(40 * MIB, Kind.PARAMETER)
    script.mark("step 1 forward")
    for _ in range(4):
        script.moment(40 * wanted.micro_batch_size * MIB)
    return script.trace()


def measured(trace: Trace, account: Account = PLAIN, more: int = 0) -> Memory:
    """Returns what a device with the simulated allocator measures, and `more` that no trace shows."""
    use = memory_use(trace, account)
    assert use.reserved_bytes is not None
    reserved = use.reserved_bytes + more
    return Memory(
        allocated_bytes=use.allocated_bytes,
        reserved_bytes=reserved,
        judged_bytes=reserved + OUTSIDE,
        judged_by="footprint",
    )


@pytest.fixture
def traced() -> Traced:
    """Returns an estimator that has the law of the growing step."""
    made = Traced(rising, PLAIN, 1000 * MIB)
    made.refine(plan(2, precision="fp32"), [plan(size, precision="fp32") for size in SIZES])
    return made


def advice(
    estimator: Estimator, memory: Memory, account: Account | None = PLAIN, limit_mib: int = 4000, size: int = 2
) -> Iterator[str]:
    return AllocatorAdvice(account, [Measured(), estimator], SPACE, limit_mib * MIB).caveats(
        plan(size, precision="fp32"), memory
    )


def test_the_figures_are_those_of_the_measurement_and_of_a_replay(traced: Traced) -> None:
    (text,) = advice(traced, measured(rising(plan(2))))
    # 40 + 20 + 40 + 60 + 80 MiB in segments of their own; or the 40 and the largest moment in pages of 20.
    assert text == (
        "the allocator reserves 240 MiB, 2.00x of what it allocates. With expandable segments it would reserve about "
        "120 MiB, by a replay of this plan's trace. To use them, set PYTORCH_ALLOC_CONF=expandable_segments:True "
        "before Python starts, and tune again"
    )


def test_what_the_trace_does_not_show_is_reserved_with_the_option_too(traced: Traced) -> None:
    (text,) = advice(traced, measured(rising(plan(2)), more=8 * MIB))
    assert "reserves 248 MiB" in text
    assert "about 128 MiB" in text


@pytest.mark.parametrize(("limit_mib", "larger"), [(1000, "16"), (700, "8"), (400, "4"), (310, ""), (4000, "")])
def test_the_largest_micro_batch_that_only_the_option_makes_fit_is_named(
    limit_mib: int, larger: str, traced: Traced
) -> None:
    # Micro batches 4, 8 and 16 need 540, 940 and 1,740 MiB with the present options, and 300, 460 and 780 with them.
    (text,) = advice(traced, measured(rising(plan(2))), limit_mib=limit_mib)
    assert (f"micro batch {larger} would fit by its estimate" in text) is bool(larger)
    assert ("would fit" in text) is bool(larger)


def test_options_that_are_set_are_kept(traced: Traced) -> None:
    account = PLAIN.model_copy(update={"settings": "max_split_size_mb:64"})
    (text,) = advice(traced, measured(rising(plan(2)), account), account)
    assert "set PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True, in place of the variable" in text


def test_no_advice_without_a_saving_a_trace_or_a_replay_that_explains_the_memory(traced: Traced) -> None:
    memory = measured(rising(plan(2)))
    expandable = PLAIN.model_copy(update={"settings": "expandable_segments:True"})
    even = Traced(level, PLAIN, 1000 * MIB)
    even.refine(plan(2, precision="fp32"))
    silent = {
        "a host": advice(traced, memory.model_copy(update={"reserved_bytes": None})),
        "unknown accounting": advice(traced, memory, account=None),
        "no trace": advice(Measured(), memory),
        "the option is on": advice(traced, memory, expandable),
        "little is reserved beyond what is allocated": advice(even, measured(level(plan(2)))),
        "a replay that saves nothing": advice(
            even, measured(level(plan(2))).model_copy(update={"allocated_bytes": 60 * MIB})
        ),
        "another peak than the replay's": advice(traced, measured(rising(plan(2)), more=40 * MIB)),
    }
    assert {why: list(found) for why, found in silent.items()} == {why: [] for why in silent}
