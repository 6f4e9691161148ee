"""The law of each combination, from as few traces as possible."""

from autofit.core.plan import Plan
from autofit.estimators.traced import DRAWN_ERROR_RATIO, ERROR_RATIO, Traced
from autofit.memory.trace import Kind, Trace
from tests.estimators.tracer import ALONG, HOST, MIB, SIZES, Tracer, plan, value_mib
from tests.memory.traces import Script


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


def test_no_more_is_traced_than_the_time_allows() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 100 * MIB, allowance_s=0.0)
    estimator.refine(plan(4))
    estimator.refine(plan(8, precision="bf16"))
    assert len(tracer.asked) == 1


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


def test_a_profile_comes_from_the_law_without_a_new_trace() -> None:
    tracer = Tracer()
    estimator = Traced(tracer, HOST, 100 * MIB)
    assert estimator.profile(plan(8)) is None
    estimator.refine(plan(4), ALONG)
    asked = len(tracer.asked)
    for size in (4, 32):  # one that was traced, one that was not
        found = estimator.profile(plan(size))
        assert found is not None
        assert found.peak_bytes == max(found.live_bytes) == (10 + 2 * size) * MIB
    assert estimator.profile(plan(8, precision="bf16")) is None
    assert len(tracer.asked) == asked
