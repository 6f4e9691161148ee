"""Traced: which plans are traced, what is said of the others, and how plans that ran correct it."""

from collections.abc import Callable

import pytest

from autofit.core.account import Account
from autofit.core.errors import SpaceError, Untraceable, UsageError
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators.traced import CORRECTED_ERROR_RATIO, DRAWN_ERROR_RATIO, ERROR_RATIO, UNSEEN_BYTES, Traced
from autofit.memory.trace import Kind, Trace
from autofit.replay import VirtualTime
from tests.memory.traces import Script

MIB = 2**20
HOST, CACHING = Account(allocator="host"), Account(allocator="caching", outside_bytes=300 * MIB)
SIZES = (1, 2, 4, 8, 16, 32, 64)


def plan(size: int, steps: int = 1, **values: str) -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": steps, **values})


ALONG = [plan(size) for size in SIZES]


class Tracer:
    """Traces steps of `fixed` MiB and `each` MiB a sample, and remembers what it was asked."""

    def __init__(self, fixed: int = 10, each: int = 2, fails: Callable[[Plan], Exception | None] = lambda _: None):
        self.fixed, self.each, self.fails = fixed, each, fails
        self.asked: list[Plan] = []

    def __call__(self, wanted: Plan) -> Trace:
        self.asked.append(wanted)
        if (error := self.fails(wanted)) is not None:
            raise error
        script = Script(micro_batch_size=wanted.micro_batch_size)
        script.take(self.fixed * MIB, Kind.PARAMETER)
        script.mark("step 1 forward")
        each = self.each if wanted.values.get("precision") != "bf16" else self.each // 2
        script.give(script.take(each * wanted.micro_batch_size * MIB, Kind.ACTIVATION))
        return script.trace()


def trial(of: Plan, peak_mib: float, purpose: Purpose = Purpose.PROBE) -> Trial:
    peak = round(peak_mib * MIB)
    memory = Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="live tensors")
    measured = Measurement(step_times_s=(1.0,), samples_per_step=of.global_batch_size, memory=memory)
    return Trial(number=0, plan=of, purpose=purpose, outcome=Outcome(status=Status.MEASURED, measurement=measured))


def value_mib(estimator: Traced, of: Plan) -> float:
    estimate = estimator.estimate(of)
    assert estimate is not None
    return estimate.value_bytes / MIB


def test_nothing_is_said_of_what_was_not_traced() -> None:
    assert Traced(Tracer(), HOST, 100 * MIB).estimate(plan(4)) is None


def test_three_traces_of_the_users_combination_give_every_size() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    assert len(tracer.asked) == 3
    assert [value_mib(estimator, plan(size)) for size in SIZES] == [10 + 2 * size for size in SIZES]
    estimator.refine(plan(8), ALONG)
    assert len(tracer.asked) == 3


def test_sizes_far_above_the_budget_do_not_make_the_law() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 30 * MIB)
    estimator.refine(plan(2), [*ALONG, plan(4096)])
    assert [asked.micro_batch_size for asked in tracer.asked] == [2, 4, 25]  # twice the budget is reached at 25
    assert value_mib(estimator, plan(8)) == 26


def test_a_small_batch_that_runs_other_operators_is_left_out_of_the_law() -> None:
    class Bent(Tracer):
        def __call__(self, wanted: Plan) -> Trace:
            found = super().__call__(wanted)
            if wanted.micro_batch_size > 4:
                return found
            script = Script(micro_batch_size=wanted.micro_batch_size)
            kept = [script.take(MIB, Kind.PARAMETER) for _ in range(2)]
            script.give(*kept)
            return script.trace()

    estimator = Traced(Bent(), HOST, 1000 * MIB)
    estimator.refine(plan(2), ALONG)
    assert value_mib(estimator, plan(32)) == 74
    assert value_mib(estimator, plan(2)) == 2  # its own trace goes before the law


def test_another_combination_is_traced_at_the_plan_that_is_asked_for() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    before = len(tracer.asked)
    estimator.refine(plan(8, precision="bf16"))
    assert [asked.values for asked in tracer.asked[before:]] == [plan(8, precision="bf16").values]
    assert value_mib(estimator, plan(8, precision="bf16")) == 18
    assert estimator.estimate(plan(16, precision="bf16")) is None
    estimator.refine(plan(16, precision="bf16"))
    guess = estimator.estimate(plan(32, precision="bf16"))
    assert guess is not None
    assert (guess.value_bytes / MIB, guess.lower_bytes, guess.upper_bytes) == (42, None, None)


def test_accumulation_is_another_curve() -> None:
    estimator = Traced(Tracer(), HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    assert estimator.estimate(plan(4, steps=2)) is None


def test_the_one_plan_that_makes_up_the_whole_batch_is_traced_with_those_that_accumulate() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 1000 * MIB)
    along = [plan(size, steps=64 // size) for size in SIZES]
    estimator.refine(along[2], along)
    asked = [(each.micro_batch_size, each.accumulation_steps) for each in tracer.asked]
    assert asked == [(4, 16), (8, 16), (32, 16), (64, 1)]
    assert [value_mib(estimator, each) for each in along] == [10 + 2 * size for size in SIZES]


def test_those_that_accumulate_have_a_law_too_where_the_users_plan_does_not() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 1000 * MIB)
    along = [plan(size, steps=64 // size) for size in SIZES]
    estimator.refine(along[-1], along)
    assert [value_mib(estimator, each) for each in along] == [10 + 2 * size for size in SIZES]
    assert len(tracer.asked) == 4


def test_a_survey_ends_when_its_share_of_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = VirtualTime()
    monkeypatch.setattr("autofit.estimators.laws.perf_counter", now)

    class Slow(Tracer):
        def __call__(self, wanted: Plan) -> Trace:
            now.advance(0.02)
            return super().__call__(wanted)

    for allowance_s, expected in ((None, 3), (0.15, 1), (0.01, 0)):
        tracer = Slow()
        estimator = Traced(tracer, HOST, 1000 * MIB, allowance_s)
        estimator.refine(plan(4), ALONG)
        before = len(tracer.asked)
        estimator.refine_all([plan(16, precision=name) for name in ("bf16", "fp16", "tf32")])
        assert len(tracer.asked) - before == expected


def test_a_survey_runs_nothing_where_the_workload_cannot_be_traced() -> None:
    tracer, ran = Tracer(fails=lambda _: Untraceable("reads values", "model.py:3")), Tracer()
    estimator = Traced(tracer, HOST, 1000 * MIB, recorder=ran)
    estimator.refine(plan(4), ALONG)
    before = len(ran.asked)
    estimator.refine_all([plan(4, precision="bf16")])
    assert (len(tracer.asked), len(ran.asked)) == (1, before)


def test_a_plan_that_ran_corrects_the_others_and_narrows_the_bounds() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    before = estimator.estimate(plan(32))
    estimator.tell(trial(plan(4), 18 + 3))
    after = estimator.estimate(plan(32))
    assert before is not None
    assert after is not None
    assert after.value_bytes - before.value_bytes == 3 * MIB
    assert (before.upper_bytes, after.lower_bytes) == (
        round(before.value_bytes * (1 + ERROR_RATIO)),
        round(after.value_bytes * (1 - CORRECTED_ERROR_RATIO)),
    )
    assert value_mib(estimator, plan(4)) == 21


def test_the_correction_is_that_of_the_most_alike() -> None:
    estimator = Traced(Tracer(), CACHING, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    for size in (8, 16):
        estimator.refine(plan(size, precision="bf16"))
    before = value_mib(estimator, plan(8, precision="bf16"))
    estimator.tell(trial(plan(4), value_mib(estimator, plan(4)) + 3))
    assert value_mib(estimator, plan(8, precision="bf16")) == before + 3
    estimator.tell(trial(plan(16, precision="bf16"), value_mib(estimator, plan(16, precision="bf16")) + 4))
    assert value_mib(estimator, plan(8, precision="bf16")) == before + 7


def test_on_a_host_the_miss_of_another_combination_only_widens_the_bounds() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    estimator.refine(plan(8, precision="bf16"))
    estimator.tell(trial(plan(4), 18 + 6))
    found = estimator.estimate(plan(8, precision="bf16"))
    assert found is not None
    assert found.upper_bytes is not None
    assert found.value_bytes == 18 * MIB
    assert found.upper_bytes >= (18 + 6) * MIB


def test_a_block_of_a_race_corrects_nothing() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    estimator.tell(trial(plan(4), 50, Purpose.BLOCK))
    assert value_mib(estimator, plan(4)) == 18


def test_on_an_accelerator_libraries_may_take_more_until_a_plan_ran() -> None:
    estimator = Traced(Tracer(), CACHING, 10_000 * MIB)
    estimator.refine(plan(16))
    first = estimator.estimate(plan(16))
    assert first is not None
    assert first.value_bytes == (10 + 32 + 300) * MIB
    assert first.upper_bytes is not None
    assert first.upper_bytes - first.value_bytes >= UNSEEN_BYTES
    estimator.tell(trial(plan(16), 360))
    second = estimator.estimate(plan(16))
    assert second is not None
    assert second.upper_bytes is not None
    assert second.upper_bytes - second.value_bytes < UNSEEN_BYTES


class Answering(Tracer):
    """Answers a result that depends on data with its largest size."""

    def __call__(self, wanted: Plan) -> Trace:
        return super().__call__(wanted).model_copy(update={"answered": 1})


def test_answers_that_depend_on_data_take_the_lower_bound_away() -> None:
    estimator = Traced(Answering(), HOST, 100 * MIB)
    estimator.refine(plan(4))
    found = estimator.estimate(plan(4))
    assert found is not None
    assert found.lower_bytes is None
    assert found.upper_bytes is not None
    assert found.worst_case


@pytest.mark.parametrize(("ran", "hold"), [(1.0, True), (0.99, True), (0.9, False), (1.1, False)])
def test_answers_hold_for_all_plans_once_one_took_what_its_trace_says(ran: float, hold: bool) -> None:
    estimator = Traced(Answering(), HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    told = estimator.memory_use(plan(4))
    assert told is not None
    assert told.judged_bytes > 1.5 * told.static_bytes
    estimator.tell(trial(plan(4), round(ran * told.judged_bytes / MIB, 3)))
    other = estimator.estimate(plan(8))
    assert other is not None
    assert other.worst_case is not hold
    assert (other.lower_bytes is not None) is hold


@pytest.mark.parametrize("error", [Untraceable("aten.nonzero depends on data", "train.py:7"), SpaceError("no such k")])
def test_a_combination_that_cannot_be_traced_has_no_estimate_and_is_not_tried_again(error: Exception) -> None:
    tracer = Tracer(fails=lambda wanted: error if "precision" in wanted.values else None)
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    for _ in range(2):
        estimator.refine(plan(8, precision="bf16"))
    assert estimator.estimate(plan(8, precision="bf16")) is None
    assert sum("precision" in asked.values for asked in tracer.asked) == 1
    assert estimator.refused == ""


def test_a_workload_that_cannot_be_traced_is_given_up_with_the_reason() -> None:
    tracer = Tracer(fails=lambda _: Untraceable("aten.nonzero depends on data", "train.py:7"))
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    estimator.refine(plan(8, precision="bf16"))
    assert len(tracer.asked) == 1
    assert estimator.refused == "aten.nonzero depends on data (train.py:7)"


def test_no_more_is_traced_than_the_time_allows() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 100 * MIB, allowance_s=0.0)
    estimator.refine(plan(4))
    estimator.refine(plan(8, precision="bf16"))
    assert len(tracer.asked) == 1


def test_a_plan_of_an_earlier_run_corrects_once_it_is_estimated() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.tell(trial(plan(4), 18 + 3))
    estimator.refine(plan(8), ALONG)
    assert value_mib(estimator, plan(32)) == 74 + 3


def test_memory_that_does_not_grow_with_the_batch_has_a_law_too() -> None:
    estimator = Traced(Tracer(fixed=500, each=0), HOST, 10 * MIB)
    estimator.refine(plan(4), ALONG)
    assert value_mib(estimator, plan(64)) == 500


def test_a_size_that_the_law_would_draw_is_traced_before_it_runs() -> None:
    class Uneven(Tracer):
        def __call__(self, wanted: Plan) -> Trace:
            self.asked.append(wanted)
            script = Script(micro_batch_size=wanted.micro_batch_size)
            script.take(10 * MIB, Kind.PARAMETER)
            script.mark("step 1 forward")
            script.moment(wanted.micro_batch_size**2 * MIB)
            return script.trace()

    tracer = Uneven()
    estimator = Traced(tracer, HOST, 10_000 * MIB)
    estimator.refine(plan(4), ALONG)
    drawn = estimator.estimate(plan(16))
    assert drawn is not None
    ratio = ERROR_RATIO + DRAWN_ERROR_RATIO
    assert drawn.lower_bytes == round(drawn.value_bytes * (1 - ratio))
    assert drawn.upper_bytes == round(drawn.value_bytes * (1 + ratio))
    estimator.refine(plan(16))
    assert tracer.asked[-1].micro_batch_size == 16
    assert value_mib(estimator, plan(16)) == 10 + 16**2
    exact = estimator.estimate(plan(16))
    assert exact is not None
    assert exact.lower_bytes == round(exact.value_bytes * (1 - ERROR_RATIO))


def test_a_step_that_loops_over_samples_is_not_traced_at_large_batches() -> None:
    class Looping(Tracer):
        def __call__(self, wanted: Plan) -> Trace:
            self.asked.append(wanted)
            script = Script(micro_batch_size=wanted.micro_batch_size)
            for _ in range(wanted.micro_batch_size):
                script.take(MIB, Kind.ACTIVATION)
            return script.trace()

    tracer = Looping()
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(8), [*ALONG, plan(4096)])
    assert [asked.micro_batch_size for asked in tracer.asked] == [8, 16]
    assert value_mib(estimator, plan(8)) == 8


def test_a_miss_may_grow_with_the_batch_or_not_and_the_bounds_allow_for_both() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    estimator.tell(trial(plan(32), 74 + 32))
    small, large = estimator.estimate(plan(8)), estimator.estimate(plan(64))
    assert small is not None
    assert large is not None
    assert small.lower_bytes is not None
    assert large.upper_bytes is not None
    assert small.lower_bytes <= (26 + 8) * MIB
    assert large.upper_bytes >= (138 + 64) * MIB


def test_one_size_that_cannot_be_traced_does_not_end_it() -> None:
    tracer = Tracer(fails=lambda wanted: Untraceable("too slow", "x") if wanted.micro_batch_size > 4 else None)
    estimator = Traced(tracer, HOST, 100 * MIB)
    estimator.refine(plan(4), ALONG)
    assert estimator.refused == ""
    assert value_mib(estimator, plan(4)) == 18


def test_options_that_cannot_be_estimated_with_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="unknown allocator option"):
        Traced(Tracer(), Account(allocator="caching", settings="newer:1"), 100 * MIB)
