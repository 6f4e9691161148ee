"""A tracer whose traces grow with the micro batch, for the tests of estimators."""

from collections.abc import Callable

from autofit.core.account import Account
from autofit.core.plan import Plan
from autofit.estimators.traced import Traced
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

MIB = 2**20


HOST, CACHING = Account(allocator="host"), Account(allocator="caching", outside_bytes=300 * MIB)


SIZES = (1, 2, 4, 8, 16, 32, 64)


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


def plan(size: int, steps: int = 1, **values: str) -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": steps, **values})


ALONG = [plan(size) for size in SIZES]


def value_mib(estimator: Traced, of: Plan) -> float:
    estimate = estimator.estimate(of)
    assert estimate is not None
    return estimate.value_bytes / MIB
