"""Traced: which plans are traced, what is said of the others, and how plans that ran correct it."""

import pytest

from autofit.core.account import Account
from autofit.core.errors import SpaceError, Untraceable, UsageError
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators.traced import CORRECTED_ERROR_RATIO, ERROR_RATIO, UNSEEN_BYTES, Traced
from autofit.memory.trace import Trace
from scripts.bench.search.replay import VirtualTime
from tests.estimators.tracer import ALONG, CACHING, HOST, MIB, Tracer, plan, value_mib


def trial(of: Plan, peak_mib: float, purpose: Purpose = Purpose.PROBE) -> Trial:
    peak = round(peak_mib * MIB)
    memory = Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="live tensors")
    measured = Measurement(step_times_s=(1.0,), samples_per_step=of.global_batch_size, memory=memory)
    return Trial(number=0, plan=of, purpose=purpose, outcome=Outcome(status=Status.MEASURED, measurement=measured))


def test_nothing_is_said_of_what_was_not_traced() -> None:
    assert Traced(Tracer(), HOST, 100 * MIB).estimate(plan(4)) is None


def test_a_survey_ends_when_its_share_of_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = VirtualTime()
    monkeypatch.setattr("autofit.estimators.traced.perf_counter", now)

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
    tracer = Tracer(fails=lambda _: Untraceable("reads values", "model.py:3"))
    estimator = Traced(tracer, HOST, 1000 * MIB)
    estimator.refine(plan(4), ALONG)
    estimator.refine(plan(8, precision="bf16"))
    estimator.refine_all([plan(4, precision="bf16")])
    assert len(tracer.asked) == 1
    assert estimator.estimate(plan(4)) is None
    assert set(estimator.bounded()) == {plan(4).combination.key}
    assert estimator.caveat == "memory was not estimated before the first probe: reads values (model.py:3)"


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


def test_a_plan_of_an_earlier_run_corrects_once_it_is_estimated() -> None:
    estimator = Traced(Tracer(), HOST, 1000 * MIB)
    estimator.tell(trial(plan(4), 18 + 3))
    estimator.refine(plan(8), ALONG)
    assert value_mib(estimator, plan(32)) == 74 + 3


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
