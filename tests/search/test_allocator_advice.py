"""Advice on expandable segments: where a replay explains the memory, with the figures of a replay or of a proof."""

import os
from collections.abc import Iterator, Mapping

import pytest

from autofit.core.account import Account
from autofit.core.briefing import Briefing
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.estimators.base import Estimator
from autofit.estimators.measured import Measured
from autofit.estimators.traced import Traced
from autofit.memory.peak import memory_use
from autofit.memory.trace import Kind, Trace
from autofit.search.allocator_advice import AllocatorAdvice, Prove
from tests.estimators.tracer import MIB, plan
from tests.fakes import briefing_of, small_bench
from tests.memory.traces import Script

OUTSIDE = 100 * MIB
PLAIN = Account(allocator="caching", outside_bytes=OUTSIDE)
EXPANDABLE = "expandable_segments:True"
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


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsets the variables of whoever runs the tests."""
    for name in [name for name in os.environ if name.endswith("_ALLOC_CONF")]:
        monkeypatch.delenv(name)


def nowhere(wanted: Plan, variables: Mapping[str, str]) -> None:
    """Proves nothing, as a bench in this process."""


class Proofs:
    """Proves plans under other variables, with a given outcome and these settings of the allocator."""

    def __init__(self, outcome: Outcome, settings: str | None = EXPANDABLE) -> None:
        self.outcome, self.asked = outcome, list[tuple[Plan, Mapping[str, str]]]()
        account = None if settings is None else PLAIN.model_copy(update={"settings": settings})
        self.briefing = briefing_of(small_bench(), account=account)

    def __call__(self, wanted: Plan, variables: Mapping[str, str]) -> tuple[Briefing, Outcome]:
        self.asked.append((wanted, variables))
        return self.briefing, self.outcome


def reserving(mib: int) -> Outcome:
    memory = Memory(
        allocated_bytes=mib * MIB, reserved_bytes=mib * MIB, judged_bytes=mib * MIB + OUTSIDE, judged_by="footprint"
    )
    return Outcome(
        status=Status.MEASURED, measurement=Measurement(step_times_s=(1.0,), samples_per_step=2, memory=memory)
    )


def advice(
    estimator: Estimator,
    memory: Memory,
    account: Account | None = PLAIN,
    limit_mib: int = 4000,
    size: int = 2,
    prove: Prove = nowhere,
) -> Iterator[str]:
    return AllocatorAdvice(account, [Measured(), estimator], SPACE, limit_mib * MIB, prove).caveats(
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


def test_a_proof_with_the_option_replaces_the_estimate(traced: Traced) -> None:
    prove = Proofs(reserving(124))
    (text,) = advice(traced, measured(rising(plan(2))), prove=prove)
    assert text == (
        "the allocator reserves 240 MiB, 2.00x of what it allocates. With expandable segments it reserves 124 MiB, "
        "measured by a second proof of this plan. To use them, set PYTORCH_ALLOC_CONF=expandable_segments:True before "
        "Python starts, and tune again"
    )
    assert prove.asked == [(plan(2, precision="fp32"), {"PYTORCH_ALLOC_CONF": EXPANDABLE})]


def test_a_proof_keeps_the_options_that_are_set(traced: Traced) -> None:
    account, both = PLAIN.model_copy(update={"settings": "max_split_size_mb:64"}), f"max_split_size_mb:64,{EXPANDABLE}"
    prove = Proofs(reserving(120), settings=both)
    (text,) = advice(traced, measured(rising(plan(2)), account), account, prove=prove)
    assert "reserves 120 MiB, measured" in text
    assert f"set PYTORCH_ALLOC_CONF={both}, in place of" in text
    assert [variables for _, variables in prove.asked] == [{"PYTORCH_ALLOC_CONF": both}]


@pytest.mark.parametrize("options", ["", "pinned_num_register_threads:4"])
def test_an_older_name_of_the_variable_that_is_set_is_overridden(
    options: str, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", options)  # with this, torch does not read the new name
    prove = Proofs(reserving(120))
    (text,) = advice(traced, measured(rising(plan(2))), prove=prove)
    assert f"set PYTORCH_ALLOC_CONF={EXPANDABLE}, in place of the variable" in text
    assert [given for _, given in prove.asked] == [
        {"PYTORCH_ALLOC_CONF": EXPANDABLE, "PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}
    ]


@pytest.mark.parametrize(("measured_mib", "named"), [(120, True), (150, False)])
def test_a_larger_micro_batch_is_named_only_if_the_proof_confirms_the_replay(
    measured_mib: int, named: bool, traced: Traced
) -> None:
    (text,) = advice(traced, measured(rising(plan(2))), limit_mib=1000, prove=Proofs(reserving(measured_mib)))
    assert f"reserves {measured_mib} MiB, measured" in text
    assert ("micro batch 16 would fit by its estimate" in text) is named


def test_an_option_that_saves_nothing_in_a_proof_is_not_advised(traced: Traced) -> None:
    assert not list(advice(traced, measured(rising(plan(2))), prove=Proofs(reserving(235))))


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.OVER_BUDGET, Status.USER_ERROR])
def test_a_plan_that_fails_with_the_option_is_not_advised_to_use_it(status: Status, traced: Traced) -> None:
    seen = reserving(300).measurement if status is Status.OVER_BUDGET else None
    prove = Proofs(Outcome(status=status, reason="no such handle", measurement=seen))
    (text,) = advice(traced, measured(rising(plan(2))), prove=prove)
    assert text.endswith(f"With expandable segments a proof of this plan failed: {status.value}, no such handle")


UNDECIDED: dict[str, Prove] = {
    "no time": nowhere,
    "the option is not in force": Proofs(reserving(240), settings=""),
    "the options are unknown": Proofs(reserving(240), settings=None),
    "skipped": Proofs(Outcome(status=Status.SKIPPED, reason="no time")),
    "timed out": Proofs(Outcome(status=Status.TIMED_OUT, reason="too slow")),
    "crashed": Proofs(Outcome(status=Status.CRASHED, reason="killed")),
}


@pytest.mark.parametrize("prove", UNDECIDED.values(), ids=UNDECIDED)
def test_the_estimate_stays_where_a_proof_decides_nothing(prove: Prove, traced: Traced) -> None:
    (text,) = advice(traced, measured(rising(plan(2))), prove=prove)
    assert "it would reserve about 120 MiB, by a replay of this plan's trace. To use them, set" in text


def test_nothing_is_proven_where_there_is_no_advice(traced: Traced) -> None:
    prove = Proofs(reserving(120))
    memory = measured(rising(plan(2)), more=40 * MIB)
    assert not list(advice(traced, memory, prove=prove))
    assert not prove.asked


def test_no_advice_without_a_saving_a_trace_or_a_replay_that_explains_the_memory(traced: Traced) -> None:
    memory = measured(rising(plan(2)))
    expandable = PLAIN.model_copy(update={"settings": EXPANDABLE})
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
