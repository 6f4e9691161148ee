"""A search that hands plans out: which ones, when, and what becomes of those that come back without a conclusion."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from autofit.core.budget import Budget
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.phases import run
from autofit.search.race_and_proof import Final
from autofit.search.workers import NoWorkers
from tests.fakes import FakeBench, small_bench, tuning_of


@dataclass
class Hands:
    """Workers that finish a plan after some looks at them.

    Attributes:
        bench: runs their plans.
        count: number of workers.
        looks: number of looks after which a plan is finished.
        dying: number of plans whose worker dies.
        given: the plans that they were given.
        dismissed: whether the search let them go.
    """

    bench: FakeBench
    count: int = 3
    looks: int = 2
    dying: int = 0
    given: list[Plan] = field(default_factory=list)
    dismissed: bool = False
    _busy: dict[str, tuple[Plan, int]] = field(default_factory=dict)

    @property
    def pending(self) -> frozenset[str]:
        return frozenset(self._busy)

    def free(self) -> bool:
        return len(self._busy) < self.count

    def hand_out(self, plan: Plan) -> None:
        assert self.free()
        self.given.append(plan)
        self._busy[plan.key] = (plan, self.looks)

    def collect(self) -> list[Trial]:
        found = []
        for key, (plan, looks) in list(self._busy.items()):
            self._busy[key] = (plan, looks - 1)
            if looks <= 1:
                del self._busy[key]
                found.append(Trial(number=1000 + len(self.given), plan=plan, outcome=self._outcome(plan)))
        return found

    def wait(self) -> None:
        assert self._busy

    def dismiss(self) -> None:
        self.dismissed = True
        self._busy.clear()

    def _outcome(self, plan: Plan) -> Outcome:
        if self.dying:
            self.dying -= 1
            return Outcome(status=Status.CRASHED, reason=DIED)
        return self.bench.evaluate(plan, Purpose.PROBE)


def probed(bench: FakeBench) -> Counter[str]:
    return Counter(plan.key for plan, purpose in bench.runs if purpose is Purpose.PROBE)


@pytest.mark.parametrize("count", [1, 4])
def test_plans_are_shared_and_each_runs_once(count: int) -> None:
    here, there = small_bench(), small_bench()
    hands = Hands(there, count)
    findings = run(tuning_of(here, workers=hands))
    assert hands.given
    assert set(probed(here).values()) == {1}
    assert not set(probed(here)) & set(probed(there))
    assert here.space.baseline.key in probed(here)
    assert here.regret(findings.plan) < 0.03
    assert hands.dismissed
    assert {trial.plan.key for trial in findings.trials} >= set(probed(there))


def test_the_plan_of_a_dead_worker_runs_here() -> None:
    here, there = small_bench(), small_bench()
    hands = Hands(there, 2, dying=2)
    findings = run(tuning_of(here, workers=hands))
    assert [plan.key in probed(here) for plan in hands.given[:2]] == [True, True]
    assert here.regret(findings.plan) < 0.03
    assert findings.counts["crashed"] == 2


def test_handed_out_plans_count_as_probes() -> None:
    here, there = small_bench(), small_bench()
    hands = Hands(there, 3)
    budget = Budget(memory_bytes=here.budget_bytes, max_trials=6)
    run(tuning_of(here, workers=hands, budget=budget))
    assert sum(probed(here).values()) + len(hands.given) == 6
    assert sum(probed(there).values()) == len(hands.given)


def test_a_search_does_not_wait_for_workers_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = small_bench(), small_bench()
    hands = Hands(there, 2, looks=10**9)
    monkeypatch.setattr(hands, "wait", lambda: here.time.advance(1.0))
    budget = Budget(memory_bytes=here.budget_bytes, time_s=60.0)
    findings = run(tuning_of(here, workers=hands, budget=budget))
    assert hands.given
    assert hands.dismissed
    assert findings.plan not in hands.given


def test_without_workers_nothing_is_handed_out() -> None:
    nobody = NoWorkers()
    assert not nobody.free()
    assert nobody.collect() == []
    assert nobody.pending == frozenset()
    with pytest.raises(AssertionError):
        nobody.hand_out(small_bench().space.baseline)


def test_without_a_race_the_speed_of_another_machine_is_not_in_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Final, "_race", lambda self, left: None)
    here, there = small_bench(noise=0.0, drift=0.0), small_bench(noise=0.0, drift=0.0, compute_s=1e-5, launch_s=1e-5)
    hands = Hands(there, 3)
    findings = run(tuning_of(here, workers=hands))
    assert findings.plan in hands.given
    true = here.samples_per_s(findings.plan) / here.samples_per_s(here.space.baseline)
    assert findings.gain is not None
    assert findings.gain.value == pytest.approx(true, rel=0.05)
    assert findings.rate_per_s == pytest.approx(here.samples_per_s(findings.plan), rel=0.05)
    others = [each for each in findings.alternatives if each.plan in hands.given and each.outcome.measured]
    assert others
    assert {(each.gain, each.over_recommended) for each in others} == {(None, None)}
