"""One search over a fake bench: what is remembered, what is told, and what the answer says."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from autofit.core.answer import Answer
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent, DevicePoisoned, StudyError
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Effect, Refusal, StrategyRecord
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict
from autofit.search.request import DEFAULT_STUDY, Evaluate, Event, Listen, Request
from autofit.search.search import SearchInterrupted, search
from scripts.bench.search.simulated import Effect as SimulatedEffect
from scripts.bench.search.simulated import space_of
from tests.fakes import FakeBench, OpenedBench, always, briefing_of, opened, small_bench

MEMORY = Request(study=":memory:")


def found(bench: FakeBench, request: Request = MEMORY, listen: Sequence[Listen] = ()) -> Answer:
    return search(opened(briefing_of(bench), bench.evaluate), request, listen, Clock(bench.time))


def found_in(briefing: Briefing, bench: FakeBench) -> Answer:
    return search(opened(briefing, bench.evaluate), MEMORY, (), Clock(bench.time))


def test_the_recommended_plan_was_proven_and_is_the_fastest() -> None:
    bench = small_bench()
    result = found(bench)
    assert (result.plan, Purpose.PROOF) in bench.runs
    assert bench.regret(result.plan) < 0.03
    assert result.proof.memory.judged_bytes <= bench.budget_bytes
    assert result.gain is not None
    assert result.gain.low > 1
    assert sum(result.counts.values()) >= len(bench.probes())


def test_what_the_briefing_says_is_in_the_answer() -> None:
    bench = small_bench()
    refusal = Refusal(name="fp16", reason="failed the gate")
    facts = bench.space.facts.model_copy(update={"refused": (refusal,)})
    briefing = briefing_of(bench, space=facts, caveats=("the loss was inferred",))
    request = Request(study=":memory:", time_s=500, max_trials=40)
    result = search(opened(briefing, bench.evaluate), request, (), Clock(bench.time))
    assert result.refused == (refusal,)
    assert "the loss was inferred" in result.caveats
    assert (result.budget.time_s, result.budget.max_trials) == (500, 40)
    assert result.budget.memory_bytes == bench.budget_bytes
    assert result.environment == briefing.environment
    assert result.study == "memory"


def test_the_time_budget_counts_from_the_clock_that_was_handed_over() -> None:
    bench = small_bench()
    clock = Clock(bench.time)
    bench.time.advance(99.9)  # opening took so long
    result = search(opened(briefing_of(bench), bench.evaluate), Request(study=":memory:", time_s=101), (), clock)
    assert len(bench.probes()) <= 3
    assert 99.9 < result.duration_s < 110


def test_time_that_is_over_before_the_first_probe_is_said_with_what_to_give(tmp_path: Path) -> None:
    bench = small_bench()
    clock = Clock(bench.time)
    bench.time.advance(10)
    with pytest.raises(BudgetSpent, match=r"time budget of 5 s is spent. Opening the workload took 10 s: give at"):
        search(opened(briefing_of(bench), bench.evaluate), Request(study=tmp_path / "study.db", time_s=5), (), clock)
    assert bench.runs == []
    found = search(opened(briefing_of(bench), bench.evaluate), Request(study=tmp_path / "study.db"))
    assert found.gain is not None


def test_no_more_trials_are_run_than_allowed() -> None:
    bench = small_bench()
    found(bench, Request(study=":memory:", max_trials=4))
    assert 1 <= len(bench.probes()) <= 5  # the user's own setting is run in any case


class Stop:
    """Raises once, after so many trials."""

    def __init__(self, after: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.left, self.error = after, error

    def __call__(self, event: Event) -> None:
        self.left -= event.kind == "trial"
        if event.kind == "trial" and self.left == 0:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupted_search_goes_on_from_its_trials(tmp_path: Path, after: int, error: type[BaseException]) -> None:
    request = Request(study=tmp_path / "study.db")
    first = small_bench()
    with pytest.raises(error) as caught:
        found(first, request, [Stop(after, error)])
    assert isinstance(caught.value, SearchInterrupted) is (error is KeyboardInterrupt)
    assert len(first.probes()) == after
    second, told = small_bench(), list[Event]()
    result = found(second, request, [told.append])
    again = set(first.probes()) & set(second.probes())
    assert len(again - {first.space.baseline}) <= 1, "the baseline and the best plan are measured again"
    known = "1 plan is" if after == 1 else f"{after} plans are"
    assert any(event.text.startswith(f"{known} known from earlier runs") for event in told)
    assert result.plan in {plan for plan, _ in second.runs}  # a proof is never taken over
    assert second.regret(result.plan) < 0.03
    assert ((tmp_path / "study.db").stat().st_mode & 0o777) == 0o600


def test_a_trial_that_runs_when_the_user_stops_costs_one_trial(tmp_path: Path) -> None:
    request = Request(study=str(tmp_path / "study.db"))
    bench = small_bench()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if len(bench.runs) == 3:
            raise KeyboardInterrupt
        return bench.evaluate(plan, purpose)

    with pytest.raises(SearchInterrupted) as caught:
        search(opened(briefing_of(bench), evaluate), request, (), Clock(bench.time))
    assert caught.value.answer.plan in {plan for plan, _ in bench.runs}
    again = small_bench()
    found(again, request)
    assert len(set(bench.probes()) & set(again.probes()) - {bench.space.baseline}) <= 1


@pytest.mark.fault("F57")
def test_trials_of_another_environment_are_not_used(tmp_path: Path) -> None:
    request = Request(study=tmp_path / "study.db")
    found(small_bench(), request)
    bench = small_bench()
    briefing = briefing_of(bench)
    other = briefing.model_copy(update={"environment": briefing.environment.model_copy(update={"threads": 9})})
    result = search(opened(other, bench.evaluate), request, (), Clock(bench.time))
    assert bench.space.baseline in bench.probes()
    assert any("another environment" in caveat and "threads" in caveat for caveat in result.caveats)


def test_earlier_trials_outside_the_present_space_are_not_recommended(tmp_path: Path) -> None:
    """The user first left batch and precision free, then fixed both: the study still holds the faster plans."""
    request = Request(study=tmp_path / "study.db")
    first = found(small_bench(), request)
    bench = small_bench()
    facts = bench.space.facts
    fixed = facts.model_copy(update={"knobs": (), "global_batch_size": facts.baseline.micro_batch_size})
    own = facts.baseline.combination.values
    baseline = Plan(values={k: v for k, v in facts.baseline.values.items() if k not in own})
    sizes = tuple(size for size in facts.sizes if baseline.micro_batch_size % size == 0)
    briefing = briefing_of(bench, space=fixed.model_copy(update={"baseline": baseline, "sizes": sizes}))

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        return bench.evaluate(Plan(values={**own, **plan.values}), purpose)

    second = search(opened(briefing, evaluate), request, (), Clock(bench.time))
    assert first.plan.combination.values
    assert second.plan.global_batch_size == baseline.micro_batch_size
    assert not second.plan.combination.values


def test_without_a_study_the_default_place_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = found(small_bench(), Request())
    assert (tmp_path / DEFAULT_STUDY).is_file()
    assert result.study == str(tmp_path / DEFAULT_STUDY)


def test_a_study_that_cannot_be_kept_is_refused_before_a_probe(tmp_path: Path) -> None:
    bench = small_bench()
    with pytest.raises(StudyError, match=r"found a directory.*choose another path"):
        found(bench, Request(study=tmp_path))
    assert bench.runs == []


def test_one_poisoned_trial_is_survived_only_where_the_next_gets_a_fresh_process() -> None:
    poisoned = small_bench()
    poisoned.faults[poisoned.space.baseline.key] = always(Status.POISONED, "illegal address")
    result = found(poisoned, Request(study=":memory:", isolated=True))
    assert result.baseline.outcome.status is Status.POISONED
    assert result.gain is None
    with pytest.raises(DevicePoisoned, match="illegal address"):
        found(poisoned, Request(study=":memory:"))


def test_every_listener_is_told_every_event() -> None:
    one, two = list[Event](), list[Event]()
    bench = small_bench()
    found(bench, listen=[one.append, two.append])
    assert one == two
    assert {"stage", "trial", "race", "proof"} <= {event.kind for event in one}
    counted = [event.done for event in one]
    assert counted == sorted(counted)
    assert counted[-1] == len(bench.probes())


def test_a_free_global_batch_that_changed_is_named() -> None:
    result = found(small_bench())
    assert result.plan.global_batch_size != 8
    assert any("learning rate" in caveat and "from 8 to" in caveat for caveat in result.caveats)


def strategy(name: str, *knobs: str, effect: Effect = "rounding") -> StrategyRecord:
    return StrategyRecord(name=name, knobs=knobs, about="does something", cost="nothing", effect=effect)


def effects(mode: str = "train", gates: Mapping[str, bool] = MappingProxyType({})) -> dict[str, str]:
    """Returns the effects of the strategies of the recommended plan; `gates` are the results of checks by name."""
    bench = small_bench()
    every = (
        strategy("batching", "micro_batch_size", "accumulation_steps"),
        *(strategy(f"of {knob.name}", knob.name, effect="exact") for knob in bench.space.facts.knobs),
        strategy("elsewhere", "of_nobody"),
    )
    facts = bench.space.facts.model_copy(update={"strategies": every})
    briefing = briefing_of(bench, space=facts)
    environment = briefing.environment.model_copy(update={"settings": {"mode": mode}})
    verdicts = {name: GateVerdict(passed=passed, reason="") for name, passed in gates.items()}
    judged = OpenedBench(
        briefing.model_copy(update={"environment": environment}),
        bench.evaluate,
        judge=lambda plan: Checked(verdicts=verdicts),
    )
    result = search(judged, MEMORY, (), Clock(bench.time))
    changed = result.plan.changes_from(result.baseline.plan).keys()
    assert all(not changed.isdisjoint(each.knobs) for each in result.strategies)
    return {each.name: each.effect for each in result.strategies}


def test_the_strategies_that_the_plan_changes_are_recorded() -> None:
    assert "elsewhere" not in effects("inference")
    assert set(effects("inference").values()) == {"rounding", "exact"}


def test_another_global_batch_changes_the_result() -> None:
    assert effects("inference")["batching"] == "rounding"
    assert effects()["batching"] == "changes the result"


def test_a_strategy_whose_gate_failed_changes_the_result() -> None:
    plan = found(small_bench()).plan
    knob = next(name.removeprefix("of ") for name in effects() if name.startswith("of "))
    value = f"{knob}={plan.values[knob]}"
    assert effects(gates={value: True})[f"of {knob}"] == "exact"
    assert effects(gates={value: False})[f"of {knob}"] == "changes the result"


def test_a_plan_whose_check_fails_is_never_the_answer_and_no_plan_with_its_value_is_proven() -> None:
    bench = small_bench()
    best = found(small_bench()).plan
    knob, value = next(iter(best.combination.changes_from(bench.space.baseline).items()))
    name = f"{knob}={value}"
    verdict, refusal = GateVerdict(passed=False, reason="far"), Refusal(name=name, reason="far", origin="gate")

    def judge(plan: Plan) -> Checked:
        if plan.values.get(knob) != value:
            return Checked()
        return Checked(passed=False, reason=f"{name}: far", verdicts={name: verdict}, refused=(refusal,))

    result = search(OpenedBench(briefing_of(bench), bench.evaluate, judge=judge), MEMORY, (), Clock(bench.time))
    assert result.plan.values[knob] != value
    assert [plan.values[knob] for plan, why in bench.runs if why is Purpose.PROBE].count(value) == 1
    assert [plan.values[knob] for plan, why in bench.runs if why is Purpose.PROOF].count(value) <= 1
    assert refusal in result.refused


def test_the_answer_says_how_micro_batches_are_weighted_and_what_its_check_noted() -> None:
    bench, verdict = small_bench(), GateVerdict(passed=True, reason="alike", weighing="1")
    checked = Checked(verdicts={"accumulation": verdict}, caveats=("the loss is a sum",))
    judged = OpenedBench(briefing_of(bench), bench.evaluate, judge=lambda plan: checked)
    result = search(judged, MEMORY, (), Clock(bench.time))
    assert result.environment.settings["weighing"] == "1"
    assert result.environment.comparable(judged.briefing.environment)
    assert "the loss is a sum" in result.caveats


def test_a_strategy_that_changes_the_result_is_named_in_the_caveats() -> None:
    bench = small_bench()
    every = (strategy("of optimizer", "optimizer", effect="changes the result"), strategy("of precision", "precision"))
    result = found_in(briefing_of(bench, space=bench.space.facts.model_copy(update={"strategies": every})), bench)
    assert {"optimizer", "precision"} <= result.plan.changes_from(result.baseline.plan).keys()
    named = [caveat for caveat in result.caveats if "changes the result" in caveat]
    assert named == [f"optimizer={result.plan.values['optimizer']} changes the result of the training: does something"]


def test_a_strategy_that_the_plan_switches_off_is_said_to_be_off() -> None:
    knob = Knob(name="checkpointed_blocks", values=("default", 0, 4), default="default")
    cost = {(knob.name, "default"): SimulatedEffect(compute=2.0), (knob.name, 4): SimulatedEffect(compute=1.5)}
    bench = FakeBench(space=space_of([knob], (8,), 8, 8), budget_bytes=64 * 2**30, effects=cost)
    about = strategy("checkpointing", knob.name, effect="exact")
    facts = bench.space.facts.model_copy(update={"strategies": (about,)})
    result = found_in(briefing_of(bench, space=facts), bench)
    assert result.plan.values[knob.name] == 0
    assert [str(each) for each in result.strategies] == [
        "checkpointing: is switched off by the plan. Where it is on, it does something; results are the same"
    ]


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.fault("F34")
def test_a_plan_at_the_limit_of_a_free_batch_is_named(above: int) -> None:
    bench = small_bench()
    best = found(small_bench()).plan.micro_batch_size
    sizes = (*(size for size in bench.space.sizes if size <= best), *(best + 1000 * (n + 1) for n in range(above)))
    facts = bench.space.facts.model_copy(update={"sizes": sizes, "batch_limit": "limited by 1/50 of your data set"})
    result = found_in(briefing_of(bench, space=facts), bench)
    limits = [caveat for caveat in result.caveats if "1/50" in caveat]
    assert result.plan.micro_batch_size == best
    assert (
        limits
        == [f"the search tried at most {sizes[-1]:,} samples per step, limited by 1/50 of your data set"][: above < 2]
    )


@pytest.mark.parametrize("most", [0, 1])
def test_a_limit_on_trials_advises_more_trials_and_not_more_time(most: int) -> None:
    result = found(small_bench(), Request(study=":memory:", max_trials=most))
    assert result.untried.startswith("No other plan was tried: ")
    assert result.untried.endswith(". Allow more trials")
    assert f"the limit of {most} trial{'s' if most != 1 else ''} was reached" in result.untried


@pytest.mark.parametrize(("waited_s", "reported"), [(0.5, False), (40.0, True)])
def test_a_wait_for_the_device_is_reported(waited_s: float, reported: bool) -> None:
    bench = small_bench()
    clock = Clock(bench.time)
    bench.time.advance(waited_s)
    clock.waited_s = waited_s
    result = search(opened(briefing_of(bench), bench.evaluate), MEMORY, (), clock)
    assert any(c.startswith("40 s of the ") and "waiting for the device" in c for c in result.caveats) == reported


def test_an_inference_has_no_learning_rate() -> None:
    bench = small_bench()
    briefing = briefing_of(bench)
    environment = briefing.environment.model_copy(update={"settings": {"mode": "inference"}})
    opening = opened(briefing.model_copy(update={"environment": environment}), bench.evaluate)
    result = search(opening, MEMORY, (), Clock(bench.time))
    assert result.plan.global_batch_size != 8
    assert not any("learning rate" in caveat for caveat in result.caveats)


def test_a_loader_that_holds_the_training_back_is_named() -> None:
    bench = small_bench()
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        measurement = Measurement(
            step_times_s=(0.1,) * 5, samples_per_step=plan.global_batch_size, memory=memory, fetch_s=0.25
        )
        return Outcome(status=Status.MEASURED, measurement=measurement)

    result = search(opened(briefing_of(bench), evaluate), Request(study=":memory:", max_trials=3))
    assert sum("3 worker processes," in caveat for caveat in result.caveats) == 1


def starting(bench: FakeBench, startup_s: Callable[[Plan], float | None]) -> Evaluate:
    """Returns the evaluation of `bench` with what the first steps of a plan take longer, except in a block."""

    def evaluate(plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        outcome = bench.evaluate(plan, purpose, terms)
        if outcome.measurement is None or purpose is Purpose.BLOCK:
            return outcome
        measurement = outcome.measurement.model_copy(update={"startup_s": startup_s(plan)})
        return outcome.model_copy(update={"measurement": measurement})

    return evaluate


def slow_to_start(plan: Plan) -> float:
    return 0.5 if plan.values["precision"] == "float32" else 60.0


def test_the_shorter_whole_training_wins() -> None:
    """The other precisions are twice as fast in the end, and take a minute to start."""
    chosen = {}
    for planned_steps in (None, 100, 100_000):
        bench = small_bench()
        request = Request(study=":memory:", planned_steps=planned_steps)
        result = search(opened(briefing_of(bench), starting(bench, slow_to_start)), request, (), Clock(bench.time))
        chosen[planned_steps] = result
    assert chosen[None].plan.values["precision"] == "bf16"
    assert chosen[100_000].plan.values["precision"] == "bf16"
    assert chosen[100].plan.values["precision"] == "float32"
    # The user's own batch is 8: 100 steps are 800 samples, whatever the batch of a plan.
    assert [r.objective.planned_samples for r in chosen.values()] == [None, 800, 800_000]
    few = chosen[100]
    assert few.gain is not None
    assert few.gain.value == pytest.approx(trained_s(bench, bench.space.baseline) / trained_s(bench, few.plan), rel=0.1)


def test_a_plan_that_is_faster_on_known_shapes_only_does_not_win() -> None:
    """The other precisions prepare kernels for each new batch. A block of the race repeats its batches."""
    bench = small_bench()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        outcome = bench.evaluate(plan, purpose)
        if outcome.measurement is None or purpose is Purpose.BLOCK or plan.values["precision"] == "float32":
            return outcome
        new_s = 3 * outcome.measurement.step_time_s
        measurement = outcome.measurement.model_copy(update={"new_shape_s": new_s})
        return outcome.model_copy(update={"measurement": measurement})

    assert (
        search(opened(briefing_of(bench), bench.evaluate), Request(study=":memory:")).plan.values["precision"] == "bf16"
    )
    bench = small_bench()
    result = search(opened(briefing_of(bench), evaluate), Request(study=":memory:"), (), Clock(bench.time))
    assert result.plan.values["precision"] == "float32"
    assert any(plan.values["precision"] == "float32" for plan in bench.probes(Purpose.BLOCK))


def trained_s(bench: FakeBench, plan: Plan, samples: int = 800) -> float:
    return slow_to_start(plan) + samples / bench.samples_per_s(plan)


def test_the_same_study_serves_another_planned_training(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    long, short = small_bench(), small_bench()
    for bench, planned_steps in ((long, 100_000), (short, 100)):
        request = Request(study=path, planned_steps=planned_steps)
        result = search(opened(briefing_of(bench), starting(bench, slow_to_start)), request, (), Clock(bench.time))
    again = set(long.probes()) & set(short.probes())
    assert again == {long.space.baseline}, (
        "for the short training it is the best known plan; the others are scored anew"
    )
    assert result.plan.values["precision"] == "float32"
    assert result.proof.startup_s == 0.5


def test_a_plan_that_its_process_has_run_before_is_charged_its_cold_start(tmp_path: Path) -> None:
    """A proof of an earlier run is the latest trial of its plan, and found the kernels ready."""
    path, bench = tmp_path / "study.db", small_bench()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        return starting(bench, lambda p: 0.0 if purpose is Purpose.PROOF else slow_to_start(p))(plan, purpose, OPEN)

    for planned_steps in (100_000, 100):
        request = Request(study=path, planned_steps=planned_steps)
        result = search(opened(briefing_of(bench), evaluate), request, (), Clock(bench.time))
    assert result.plan.values["precision"] == "float32"


def test_the_objective_decides_and_has_a_study_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    found(small_bench(), Request(study=path))
    bench = small_bench()
    result = found(bench, Request(study=path, objective=Objective(unit="tokens")))
    assert result.objective.unit == "tokens"
    assert bench.space.baseline in bench.probes()
