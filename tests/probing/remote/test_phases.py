"""Phases of a child that opens its target: which one goes on, since when, and what each took."""

from autofit.core.budget import Clock
from autofit.probing.remote.bench import STARTING, Phases


class Time:
    """Seconds that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_phase_has_its_seconds_and_a_phase_told_again_goes_on() -> None:
    time, told = Time(), list[str]()
    phases = Phases(Clock(now=time), told.append)
    assert (phases.current, phases.since_s, phases.spent_s) == (STARTING, 0.0, {})
    time.now_s += 2
    phases.enter("survey")
    time.now_s += 3
    phases.enter("survey")
    time.now_s += 4
    assert (phases.current, phases.since_s) == ("survey", 7.0)
    phases.enter("open")
    assert (phases.current, phases.since_s) == ("open", 0.0)
    assert phases.spent_s == {STARTING: 2.0, "survey": 7.0}
    assert told == ["survey", "survey", "open"]


def test_a_phase_that_comes_back_adds_up() -> None:
    time = Time()
    phases = Phases(Clock(now=time), lambda phase: None)
    for phase in ("survey", "open", "survey", "open"):
        phases.enter(phase)
        time.now_s += 5
    phases.enter("end")
    assert phases.spent_s == {STARTING: 0.0, "survey": 10.0, "open": 10.0}


def test_an_opening_that_is_cut_off_says_its_phases_and_twice_the_time_that_it_had() -> None:
    time = Time()
    phases = Phases(Clock(limit_s=20.0, now=time), lambda phase: None)
    time.now_s += 4
    phases.enter("import")
    time.now_s += 13
    phases.enter("open")
    time.now_s += 6
    assert phases.cut_off() == (
        "'starting its process' took 4 s, 'import' took 13 s, 'open' had been running for 6 s. "
        "Give about 50 s, or look for what hangs in this phase"
    )
