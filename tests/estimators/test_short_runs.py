"""Short runs in place of traces: which are made, what law they give, and how far it is trusted."""

from collections.abc import Callable

import pytest

from autofit.core.account import Account
from autofit.core.errors import AutofitError, DevicePoisoned, Untraceable
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators import short_runs as recorded
from autofit.estimators.short_runs import REACH, listed, small_sizes
from autofit.estimators.traced import Traced
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

MIB = 2**20
HOST = Account(allocator="host")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def plan(size: int, steps: int = 1, **values: str) -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": steps, **values})


def untraceable(wanted: Plan) -> Trace:
    raise Untraceable("aten.nonzero depends on data", "train.py:7")


class Recorder:
    """Runs steps of 10 MiB and 2 MiB a sample, and remembers what it was asked."""

    def __init__(self, fails: Callable[[Plan], Exception | None] = lambda _: None) -> None:
        self.fails = fails
        self.asked: list[Plan] = []

    def __call__(self, wanted: Plan) -> Trace:
        self.asked.append(wanted)
        if (error := self.fails(wanted)) is not None:
            raise error
        script = Script(micro_batch_size=wanted.micro_batch_size)
        script.take(10 * MIB, Kind.PARAMETER)
        script.mark("step 1 forward")
        self.forward(script, wanted.micro_batch_size)
        return script.trace()

    def forward(self, script: Script, size: int) -> None:
        script.give(script.take(2 * size * MIB, Kind.ACTIVATION))

    @property
    def sizes(self) -> list[int]:
        return [asked.micro_batch_size for asked in self.asked]


def estimator(recorder: Recorder | None, own: int = 16, **values: float) -> Traced:
    made = Traced(untraceable, HOST, 1000 * MIB, recorder=recorder, **values)
    made.refine(plan(own), [plan(size) for size in SIZES])
    return made


def ran(of: Plan, peak_mib: float) -> Trial:
    peak = round(peak_mib * MIB)
    memory = Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="live tensors")
    measured = Measurement(step_times_s=(1.0,), samples_per_step=of.global_batch_size, memory=memory)
    outcome = Outcome(status=Status.MEASURED, measurement=measured)
    return Trial(number=0, plan=of, purpose=Purpose.PROBE, outcome=outcome)


def value_mib(of: Traced, wanted: Plan) -> float | None:
    found = of.estimate(wanted)
    return None if found is None else found.value_bytes / MIB


def bounded(of: Traced, wanted: Plan) -> bool:
    found = of.estimate(wanted)
    assert found is not None
    assert (found.lower_bytes is None) == (found.upper_bytes is None)
    return found.lower_bytes is not None


@pytest.mark.parametrize(
    ("sizes", "own", "chosen"),
    [
        (SIZES, 16, (2, 4, 8)),
        (SIZES, 4, (2, 3, 4)),  # no three of the space's own are left without a single sample
        ((1, 6, 12, 24), 24, (6, 12, 24)),
        ((1, 6, 12, 24), 12, (2, 3, 4)),
        (SIZES, 3, (2, 3)),
        (SIZES, 2, (1, 2)),
        (SIZES, 1, ()),
        ((16,), 16, ()),
    ],
)
def test_the_smallest_sizes_are_recorded_and_none_above_the_users(
    sizes: tuple[int, ...], own: int, chosen: tuple[int, ...]
) -> None:
    assert small_sizes(sizes, own) == chosen


def test_sizes_in_words() -> None:
    assert [listed(sizes) for sizes in ((2,), (2, 4), (2, 4, 8))] == ["2", "2 and 4", "2, 4 and 8"]


def test_three_short_runs_give_every_size() -> None:
    recorder = Recorder()
    made = estimator(recorder)
    assert recorder.sizes == [2, 4, 8]
    assert [value_mib(made, plan(size)) for size in (1, 16, 256)] == [12, 42, 522]
    assert made.caveat == (
        "this workload cannot be traced: aten.nonzero depends on data (train.py:7); three short runs at micro batches "
        "2, 4 and 8 gave the sizes of its allocations"
    )
    found = made.estimate(plan(16))
    assert found is not None
    assert found.basis == "scaled to 16 from short runs at micro batches 2, 4 and 8"
    made.refine(plan(32))
    assert len(recorder.asked) == 3


def test_a_workload_that_can_be_traced_is_never_run() -> None:
    recorder = Recorder()
    made = Traced(Recorder(), HOST, 1000 * MIB, recorder=recorder)
    made.refine(plan(16), [plan(size) for size in SIZES])
    made.refine(plan(16, precision="bf16"))
    assert recorder.asked == []
    assert made.caveat == ""


def test_without_a_recorder_there_is_no_estimate() -> None:
    made = estimator(None)
    assert made.estimate(plan(16)) is None
    assert made.caveat.startswith("memory was not estimated before the first probe: aten.nonzero depends on data")


def test_a_law_that_a_third_run_checked_has_bounds_as_far_as_it_reaches() -> None:
    made = estimator(Recorder())
    assert bounded(made, plan(8 * REACH))
    assert not bounded(made, plan(16 * REACH))
    made.tell(ran(plan(16), 42))
    assert bounded(made, plan(16 * REACH))


def test_two_runs_give_no_bounds_until_a_plan_that_ran_agrees() -> None:
    made = estimator(Recorder(), own=2)
    assert "two short runs at micro batches 1 and 2" in made.caveat
    assert (value_mib(made, plan(16)), bounded(made, plan(16))) == (42, False)
    made.tell(ran(plan(2), 14))  # that size has been recorded: it checks nothing
    assert not bounded(made, plan(16))
    made.tell(ran(plan(8), 26))
    assert bounded(made, plan(16))


def test_a_plan_that_ran_and_disagrees_takes_the_bounds_away() -> None:
    made = estimator(Recorder())
    made.tell(ran(plan(64), 200))
    assert not bounded(made, plan(16))


class Momentary(Recorder):
    """Takes as much for the moment as it keeps."""

    def forward(self, script: Script, size: int) -> None:
        kept = script.take(2 * size * MIB, Kind.ACTIVATION)
        script.moment(2 * size * MIB)
        for _ in range(40):
            script.moment(1)
        script.give(kept)


def test_what_is_momentary_may_have_stopped_growing_where_nothing_larger_ran() -> None:
    made = estimator(Momentary())
    found = made.estimate(plan(64))
    assert found is not None
    assert found.lower_bytes is not None
    assert found.value_bytes == (10 + 4 * 64) * MIB
    assert found.lower_bytes <= (10 + 2 * 64 + 2 * 8) * MIB
    made.tell(ran(plan(32), 10 + 2 * 32 + 2 * 8))  # it had
    found = made.estimate(plan(64))
    assert found is not None
    assert found.lower_bytes is not None
    assert found.upper_bytes is not None
    assert found.lower_bytes <= (10 + 2 * 64 + 2 * 8) * MIB <= found.upper_bytes


class Rounded(Recorder):
    """Keeps an activation in whole pages, as libraries do."""

    def forward(self, script: Script, size: int) -> None:
        script.give(script.take(-(-size * 1_000_000 // 4096) * 4096, Kind.ACTIVATION))


def test_what_a_library_rounds_up_to_pages_is_no_reason_to_refuse() -> None:
    assert value_mib(estimator(Rounded()), plan(256)) == pytest.approx(10 + 256_000_000 / MIB, rel=0.001)


class Looping(Recorder):
    """Loops over the samples."""

    def forward(self, script: Script, size: int) -> None:
        for _ in range(size):
            script.take(MIB, Kind.ACTIVATION)


def test_a_sequence_that_depends_on_the_size_has_no_estimate() -> None:
    made = estimator(Looping())
    assert made.estimate(plan(16)) is None
    assert made.estimate(plan(8)) is None
    assert "short runs did not give its law either: the events at micro batches of 2 and 4 differ" in made.caveat


class Cold(Recorder):
    """Makes a table in its first run and keeps it."""

    def __call__(self, wanted: Plan) -> Trace:
        self.asked.append(wanted)
        script = Script(micro_batch_size=wanted.micro_batch_size)
        script.take(10 * MIB, Kind.PARAMETER)
        if len(self.asked) > 1:
            script.take(3 * MIB, Kind.BUFFER)
        script.mark("step 1 forward")
        if len(self.asked) == 1:
            script.take(3 * MIB)
        self.forward(script, wanted.micro_batch_size)
        return script.trace()


def test_what_only_a_first_run_makes_is_no_reason_to_refuse() -> None:
    recorder = Cold()
    assert value_mib(estimator(recorder), plan(16)) == 10 + 3 + 32
    assert recorder.sizes == [2, 4, 8, 2]


@pytest.mark.parametrize("error", [Untraceable("out of memory", "in forward"), AutofitError("no such k")])
def test_a_run_that_fails_ends_it_with_the_reason(error: AutofitError) -> None:
    recorder = Recorder(fails=lambda wanted: error if wanted.micro_batch_size == 4 else None)
    made = estimator(recorder)
    made.refine(plan(16))
    assert recorder.sizes == [2, 4]
    assert made.estimate(plan(16)) is None
    assert str(getattr(error, "reason", error)) in made.caveat


def test_a_poisoned_device_ends_the_search() -> None:
    with pytest.raises(DevicePoisoned):
        estimator(Recorder(fails=lambda _: DevicePoisoned("illegal access")))


def test_another_combination_is_run_at_two_sizes_once() -> None:
    recorder = Recorder()
    made = estimator(recorder)
    for _ in range(2):
        made.refine(plan(64, precision="bf16"))
    assert [asked.values.get("precision") for asked in recorder.asked[3:]] == ["bf16", "bf16"]
    assert recorder.sizes[3:] == [2, 4]
    assert (value_mib(made, plan(64, precision="bf16")), bounded(made, plan(64, precision="bf16"))) == (138, False)
    made.refine(plan(8, steps=4))
    assert [asked.accumulation_steps for asked in recorder.asked[5:]] == [4, 4]


def test_another_combination_is_not_run_where_a_run_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "QUICK_S", -1.0)
    recorder = Recorder()
    made = estimator(recorder)
    made.refine(plan(64, precision="bf16"))
    assert recorder.sizes == [2, 4, 8]
    assert made.estimate(plan(64, precision="bf16")) is None


def test_nor_where_the_users_own_has_no_law() -> None:
    recorder = Looping()
    estimator(recorder).refine(plan(64, precision="bf16"))
    assert recorder.sizes == [2, 4, 8, 2]


def test_no_more_is_run_than_the_time_allows() -> None:
    recorder = Recorder()
    made = estimator(recorder, allowance_s=0.0)
    made.refine(plan(64, precision="bf16"))
    assert recorder.sizes == [2, 4]
    assert value_mib(made, plan(16)) == 42
