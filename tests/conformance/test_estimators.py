"""What every estimator keeps: it never runs or traces a plan unasked, its answers hold still, and its bounds hold."""

from collections.abc import Callable
from itertools import product

import pytest

from autofit import estimators
from autofit.core.account import Account
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators.base import Context, Estimator
from autofit.memory.profile import Profile
from tests.estimators.tracer import ALONG, CACHING, HOST, MIB, SIZES, Tracer, plan

PLANS = [*ALONG, *(plan(size, precision="bf16") for size in SIZES), *(plan(size, steps=2) for size in SIZES)]
UNKNOWN = Account(allocator="caching", settings="roundup_power2_divisions:[no:number]")
"""An allocator with an option that cannot be simulated."""

each_member = pytest.mark.parametrize("member", estimators.members(), ids=lambda member: member.__name__)


def true_bytes(given: Plan) -> int:
    """Returns the peak of a plan as `Tracer` traces it."""
    each = 1 if given.values.get("precision") == "bf16" else 2
    return (10 + each * given.micro_batch_size) * MIB


def trial(given: Plan, number: int = 0) -> Trial:
    memory = Memory(allocated_bytes=true_bytes(given), judged_bytes=true_bytes(given), judged_by="test")
    measurement = Measurement(step_times_s=(1.0,), samples_per_step=given.global_batch_size, memory=memory)
    return Trial(number=number, plan=given, outcome=Outcome(status=Status.MEASURED, measurement=measurement))


def made(member: type[Estimator], tracer: Tracer, account: Account = HOST) -> Estimator:
    """Returns an estimator of a search in which everything is at hand."""
    context = Context(limit_bytes=10**9, account=account, allowance_s=60.0, trace=tracer)
    estimator = member.of(context)
    assert estimator is not None, "nothing more can be given"
    return estimator


def learned(member: type[Estimator], tracer: Tracer) -> Estimator:
    """Returns an estimator that was told and asked as a search does it: some plans refined, others only told."""
    estimator = made(member, tracer)
    estimator.refine_all([ALONG[0], ALONG[-1]])
    estimator.refine(ALONG[3], ALONG)
    for number, given in enumerate((ALONG[1], ALONG[3], plan(8, precision="bf16"))):
        estimator.tell(trial(given, number))
    return estimator


def answers(estimator: Estimator) -> list[Estimate | None]:
    return [estimator.estimate(given) for given in PLANS]


@each_member
@pytest.mark.parametrize("account", [None, HOST, CACHING, UNKNOWN])
@pytest.mark.parametrize("traces", [True, False])
def test_a_search_without_what_it_needs_goes_without_it(
    member: type[Estimator], account: Account | None, traces: bool
) -> None:
    tracer = Tracer()
    context = Context(10**9, account, trace=tracer if traces else None)
    found = member.of(context)
    assert found is None or isinstance(found, member)
    assert tracer.asked == [], "being made takes no time"


@each_member
def test_an_answer_takes_no_run_and_no_trace(member: type[Estimator]) -> None:
    tracer = Tracer()
    estimator = made(member, tracer)
    answers(estimator)
    assert all(estimator.profile(given) is None for given in PLANS), "nothing is known yet"
    assert tracer.asked == []
    estimator = learned(member, tracer)
    asked = len(tracer.asked)
    answers(estimator)
    assert all(isinstance(estimator.profile(given), Profile | None) for given in PLANS)
    assert len(tracer.asked) == asked


@each_member
def test_answers_change_only_when_it_learns(member: type[Estimator]) -> None:
    estimator = learned(member, Tracer())
    first = answers(estimator)
    assert list(reversed([estimator.estimate(given) for given in reversed(PLANS)])) == first
    assert answers(estimator) == first


@each_member
def test_the_same_trials_give_the_same_answers(member: type[Estimator]) -> None:
    assert answers(learned(member, Tracer())) == answers(learned(member, Tracer()))


@each_member
def test_bounds_hold_and_enclose_the_value(member: type[Estimator]) -> None:
    estimator = learned(member, Tracer())
    for given in PLANS:
        found = estimator.estimate(given)
        if found is None:
            continue
        assert found.value_bytes >= 0
        assert found.basis, "the reason that a person is shown"
        if found.lower_bytes is not None:
            assert 0 <= found.lower_bytes <= found.value_bytes
            assert found.lower_bytes <= true_bytes(given), f"{given} would be excluded though it may fit"
        if found.upper_bytes is not None:
            assert max(found.value_bytes, true_bytes(given)) <= found.upper_bytes


@each_member
def test_every_kind_of_trial_is_taken(member: type[Estimator]) -> None:
    estimator = made(member, Tracer())
    strange = plan(7, steps=3, layout="tiled")
    for number, (status, purpose) in enumerate(product(Status, Purpose)):
        ran = status in (Status.MEASURED, Status.OVER_BUDGET)
        measurement = trial(strange).outcome.measurement if ran else None
        outcome = Outcome(status=status, reason="" if status is Status.MEASURED else "why", measurement=measurement)
        estimator.tell(Trial(number=number, plan=strange, outcome=outcome, purpose=purpose, earlier=number % 2 == 0))
    found = estimator.estimate(strange)
    assert found is None or (found.lower_bytes or 0) <= true_bytes(strange)
    assert isinstance(estimator.caveat, str)


@each_member
@pytest.mark.parametrize(
    "error", [lambda _: Untraceable("depends on data", "train.py:7"), lambda _: SpaceError("cannot be applied")]
)
def test_a_plan_that_cannot_be_traced_ends_no_search(
    member: type[Estimator], error: Callable[[Plan], Exception]
) -> None:
    tracer = Tracer(fails=error)
    estimator = learned(member, tracer)
    answers(estimator)
    estimator.show(ALONG[2])
    assert estimator.profile(ALONG[2]) is None
    assert isinstance(estimator.caveat, str)


@pytest.mark.parametrize("member", estimators.BUILT_IN, ids=lambda member: member.__name__)
def test_autofits_estimators_have_an_answer_for_each_size_of_a_combination_that_ran(member: type[Estimator]) -> None:
    """Without this the tests above could pass by never being answered."""
    estimator = learned(member, Tracer())
    found = [estimator.estimate(given) for given in ALONG]
    assert all(found)
    assert all(estimate.lower_bytes for estimate in found if estimate is not None)
