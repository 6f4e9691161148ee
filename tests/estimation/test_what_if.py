"""What-if: the peaks of choices at several sizes are those of traces whose peaks are known."""

from collections.abc import Callable

import pytest

from autofit.core.errors import Untraceable
from autofit.core.plan import Plan
from autofit.estimation.estimate import MOST_SIZES, estimate, peak_laws, spaced
from autofit.estimation.estimation import Estimation
from autofit.memory.trace import Trace
from tests.estimation.traces import BLOCKS, CHECKPOINTED, MIB, PRECISION, WEIGHTS, briefing, peak_of, trace_of


def found() -> Estimation:
    return estimate(briefing(1000 * MIB), trace_of, "train.py:make", with_laws=True)


def test_the_parts_of_each_law_sum_to_the_peak_of_its_trace() -> None:
    laws = peak_laws(briefing(1000 * MIB), trace_of, (1, 4, 16))
    assert [(law.value, law.traded) for law in laws] == [
        (value, count) for value in ("fp32", "bf16") for count in (0, BLOCKS)  # tf32 has the memory of fp32
    ]  # fmt: skip
    own = briefing(1000 * MIB).space.baseline
    for law in laws:
        for place, size in enumerate(law.sizes):
            plan = own.replace(micro_batch_size=size, precision=law.value, checkpointed_blocks=law.traded)
            assert sum(values[place] for values in law.parts.values()) == max(peak_of(plan), 4 * WEIGHTS)


def test_a_choice_that_cannot_be_traced_is_left_out() -> None:
    def half(plan: Plan) -> Trace:
        if plan.values["precision"] == "bf16":
            raise Untraceable("no", "here")
        return trace_of(plan)

    assert {law.value for law in peak_laws(briefing(1000 * MIB), half, (1, 8))} == {"fp32"}


def test_without_a_knob_that_trades_memory_there_is_one_law_for_each_choice() -> None:
    given = briefing(1000 * MIB, knobs=(PRECISION,))
    assert [law.traded for law in peak_laws(given, trace_of, (1, 8))] == [0, 0]
    assert len(peak_laws(briefing(1000 * MIB, knobs=(CHECKPOINTED,)), trace_of, (1, 8))) == 2


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [((1, 2, 4), 3, (1, 2, 4)), (range(1, 101), 3, (1, 10, 100)), ((8,), 3, (8,)), ((1, 2, 3, 64), 3, (1, 3, 64))],
)
def test_sizes_are_spaced_by_ratio(values: tuple[int, ...], most: int, expected: tuple[int, ...]) -> None:
    assert spaced(values, most) == expected


def test_laws_are_computed_and_kept_only_where_they_are_asked_for() -> None:
    assert estimate(briefing(1000 * MIB), trace_of).laws == ()
    kept = Estimation.model_validate_json(found().model_dump_json(by_alias=True))
    assert kept.laws == found().laws
    assert all(len(law.sizes) <= MOST_SIZES for law in kept.laws)


def test_other_sequence_lengths_are_traced_where_a_step_runs_with_them() -> None:
    given = briefing(1000 * MIB).model_copy(update={"sequence_length": 32})
    asked = set[int]()

    def at_length(length: int) -> Callable[[Plan], Trace]:
        asked.add(length)

        def traced(plan: Plan) -> Trace:
            if length > 32:
                raise Untraceable("more positions than the model has", "here")
            return trace_of(plan.replace(micro_batch_size=plan.micro_batch_size // 2))

        return traced

    laws = peak_laws(given, trace_of, (2, 4, 16), at_length)
    assert asked == {16, 64}
    half = [law for law in laws if law.length is not None]
    assert {law.length for law in half} == {16}
    assert [(law.value, law.traded, law.length) for law in laws if law not in half] == [
        (law.value, law.traded, None) for law in half
    ]
    for law in half:
        assert law.sizes == (2, 16)
        plan = given.space.baseline.replace(precision=law.value, checkpointed_blocks=law.traded)
        peaks = [max(peak_of(plan.replace(micro_batch_size=size // 2)), 4 * WEIGHTS) for size in law.sizes]
        assert [sum(values) for values in zip(*law.parts.values(), strict=True)] == peaks


def test_without_a_length_or_at_length_one_none_is_traced() -> None:
    def never(length: int) -> Callable[[Plan], Trace]:
        raise AssertionError(length)

    for length in (None, 1):
        given = briefing(1000 * MIB).model_copy(update={"sequence_length": length})
        assert all(law.length is None for law in peak_laws(given, trace_of, (1, 8), never))
