"""A plan that finds its code in the cache is charged what a first training pays."""

import pytest

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.trial import Trial
from autofit.search.trial_runner import from_cold_start

COMPILE = Knob(name="compile", values=("off", "all", "part"), default="off", warm_up_s=(0.0, 2.0, 1.0))
OTHER = Knob(name="other", values=(0, 1), default=0)


def plan(**values: KnobValue) -> Plan:
    return Plan(values={"micro_batch_size": 8, "compile": "off", "other": 0, **values})


def outcome(startup_s: float | None) -> Outcome:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="")
    return Outcome(
        status=Status.MEASURED,
        measurement=Measurement(step_times_s=(0.1,), samples_per_step=8, memory=memory, startup_s=startup_s),
    )


def trial(of: Plan, startup_s: float | None) -> Trial:
    return Trial(number=0, plan=of, outcome=outcome(startup_s))


@pytest.mark.parametrize(
    ("ran", "earlier", "expected"),
    [
        (plan(compile="all"), [trial(plan(compile="all"), 9.0)], 9.0),  # the same plan, warm
        (plan(compile="all", micro_batch_size=16), [trial(plan(compile="all"), 9.0)], 9.0),  # most of the same code
        (plan(compile="all"), [trial(plan(compile="all"), 0.5)], 1.0),  # it took longer itself
        (plan(compile="part"), [trial(plan(compile="all"), 9.0)], 1.0),  # other code
        (plan(), [trial(plan(compile="all"), 9.0), trial(plan(other=1), 9.0)], 1.0),  # nothing to compile
        (plan(other=1), [trial(plan(other=1), 9.0)], 9.0),  # the same kernels, tuned
        (plan(compile="all"), [trial(plan(compile="all"), None)], 1.0),
        (plan(compile="all"), [], 1.0),
    ],
)
def test_a_plan_is_charged_the_longest_warm_up_of_its_code(ran: Plan, earlier: list[Trial], expected: float) -> None:
    found = from_cold_start(outcome(1.0), ran, earlier, (COMPILE, OTHER)).measurement
    assert found is not None
    assert found.startup_s == expected


def test_what_was_not_measured_stays_as_it_is() -> None:
    earlier = [trial(plan(compile="all"), 9.0)]
    failed = Outcome(status=Status.CRASHED, reason="says the test")
    assert from_cold_start(failed, plan(compile="all"), earlier, (COMPILE,)) is failed
    unknown = outcome(None)
    assert from_cold_start(unknown, plan(compile="all"), earlier, (COMPILE,)) is unknown
