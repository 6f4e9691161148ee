"""The yardstick of a search takes what the request and the briefing have."""

from autofit.core.budget import Clock
from autofit.search.request import Request
from autofit.trackers.yardstick import Yardstick
from tests.fakes import briefing_of, small_bench


def test_before_the_workload_was_looked_at_only_the_limits_are_known() -> None:
    bench, request, clock = small_bench(), Request(time_s=60.0, max_trials=7), Clock()
    early = Yardstick.of(None, request, clock)
    assert (early.baseline, early.memory_bytes, early.time_s, early.max_trials) == (None, None, 60.0, 7)
    briefing = briefing_of(bench)
    late = Yardstick.of(briefing, request, clock, lambda: "trace")
    assert (late.baseline, late.memory_bytes) == (briefing.space.baseline, briefing.budget.memory_bytes)
    assert late.doing() == "trace"
    assert late.clock is clock
