"""Tuning again: when it is due, whether what the search finds is better, and which file it goes to."""

import os
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.budget import Clock
from autofit.core.environment import Environment
from autofit.core.errors import PlanFileError, UserCodeError
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.records import HistorySegment, NightRecord, Verdict, VerdictKind
from autofit.nightly.retune import accept, compared, due_for, new_path, previous_path, replace_plan, retune
from autofit.search.request import Event, Request
from tests.fakes import FakeBench, always, briefing_of, during
from tests.nightly.benches import calm, faster, recommended, runner_of

BENCH = calm()
ACCEPTED = recommended(BENCH, faster(BENCH))
SAME = ACCEPTED.environment
OTHER = SAME.model_copy(update={"versions": {"fake": "2"}})


def verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind=kind, reason="why")


def night(
    kind: VerdictKind, tuned: str = "", environment: Environment = SAME, plan: Plan = ACCEPTED.plan
) -> NightRecord:
    segment = HistorySegment.of(environment, plan)
    return NightRecord(
        id="a", job="j", night="n", at="2026-11-25", verdict=verdict(kind), tuned=tuned, environment=environment,
        segment=segment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "environment", "reason"),
    [
        (VerdictKind.STEADY, SAME, ""),
        (VerdictKind.CANNOT_COMPARE, SAME, ""),
        (VerdictKind.REGRESSION, SAME, "the accepted plan is slower or needs more memory than in earlier nights"),
        (VerdictKind.FASTER, SAME, "the accepted plan is faster than in earlier nights"),
        (VerdictKind.DOES_NOT_FIT, SAME, "the accepted plan does not run"),
        (VerdictKind.ERROR, SAME, "the accepted plan does not run"),
        (VerdictKind.STEADY, OTHER, "the environment changed since the plan was tuned: fake: 2, was 1"),
        (
            VerdictKind.DOES_NOT_FIT, OTHER,
            "the accepted plan does not run; the environment changed since the plan was tuned: fake: 2, was 1",
        ),
    ],
)  # fmt: skip
def test_a_job_is_tuned_again_for_a_reason(kind: VerdictKind, environment: Environment, reason: str) -> None:
    assert due_for([], ACCEPTED, environment, verdict(kind))[0] == reason


def test_an_environment_in_which_the_job_was_tuned_already_is_no_reason() -> None:
    past = [night(VerdictKind.CANNOT_COMPARE, "changed", OTHER), night(VerdictKind.STEADY, "", OTHER)]
    found = due_for(past, ACCEPTED, OTHER, verdict(VerdictKind.STEADY))
    assert found[0] == ""
    assert "fake: 2, was 1, for which it was tuned at 2026-11-25" in found[1]
    of_another_plan = [night(VerdictKind.STEADY, "changed", OTHER, plan=BENCH.space.baseline)]
    assert due_for(of_another_plan, ACCEPTED, OTHER, verdict(VerdictKind.STEADY))[0]
    failed_search = [night(VerdictKind.STEADY, "", OTHER)]
    assert due_for(failed_search, ACCEPTED, OTHER, verdict(VerdictKind.STEADY))[0]


def test_a_regression_that_lasts_is_tuned_for_once_and_a_new_one_again() -> None:
    lasts = [night(VerdictKind.REGRESSION, "slower"), night(VerdictKind.REGRESSION)]
    assert due_for(lasts, ACCEPTED, SAME, verdict(VerdictKind.REGRESSION))[0] == ""
    returned = [*lasts, night(VerdictKind.STEADY)]
    assert due_for(returned, ACCEPTED, SAME, verdict(VerdictKind.REGRESSION))[0]
    error = NightRecord(id="e", job="j", night="n", at="t", verdict=verdict(VerdictKind.ERROR))
    assert due_for([*lasts, error], ACCEPTED, SAME, verdict(VerdictKind.REGRESSION))[0] == ""


def test_many_changes_are_counted() -> None:
    many = SAME.model_copy(update={"versions": {name: "2" for name in "abcdef"}})
    assert due_for([], ACCEPTED, many, verdict(VerdictKind.STEADY))[0].endswith("and 4 more")


def ignore(event: Event) -> None:
    """Listens to nothing."""


def begin(bench: FakeBench) -> Clock:
    return Clock(now=bench.time, limit_s=600.0)


def test_a_search_on_the_bench_of_the_night_finds_a_better_plan_and_proves_that_it_is() -> None:
    bench, events = calm(), list[str]()
    runner = runner_of(bench)
    found = retune(
        runner, Request(study=":memory:"), bench.space.baseline, lambda e: events.append(e.kind), lambda: begin(bench)
    )
    assert found.better
    assert bench.regret(found.answer.plan) < 0.05
    assert found.gain is not None
    assert found.gain.low > 1.02
    assert found.note.startswith("the answer has ")
    assert "proof" in events
    assert found.answer.budget.time_s == 600.0


def test_a_search_without_an_accepted_plan_is_not_compared() -> None:
    bench = calm()
    found = retune(runner_of(bench), Request(study=":memory:"), None, ignore, lambda: begin(bench))
    assert (found.better, found.gain) == (True, None)


def test_an_error_of_the_search_is_raised() -> None:
    bench = calm()
    for plan in bench.space.plans():
        bench.faults[plan.key] = always(Status.USER_ERROR, "boom")
    with pytest.raises(UserCodeError):
        retune(runner_of(bench), Request(study=":memory:"), None, ignore, lambda: begin(bench))


def slightly_faster(ratio: float) -> tuple[FakeBench, Plan]:
    """Returns a bench on which one plan is `ratio` as fast as the accepted one."""
    bench = calm(noise=0.001, drift=0.0005)
    plan = faster(bench).replace(micro_batch_size=16)
    true = bench.samples_per_s(plan) / bench.samples_per_s(faster(bench))
    bench.slower = lambda one: true / ratio if one == plan else 1.0
    return bench, plan


@pytest.mark.parametrize(("ratio", "better"), [(1.10, True), (1.03, True), (1.01, False), (1.0, False), (0.9, False)])
def test_only_what_is_faster_beyond_the_tie_margin_is_better(ratio: float, better: bool) -> None:
    bench, plan = slightly_faster(ratio)
    found = compared(runner_of(bench), recommended(bench, plan), faster(bench))
    assert found.better is better
    assert found.gain is not None
    assert found.gain.low < ratio < found.gain.high
    assert ("the accepted plan stays" in found.note) is not better


@pytest.mark.parametrize(("runs", "verb"), [(True, "found"), (False, "proved")])
def test_the_accepted_plan_is_not_proposed_also_if_it_lacks_a_knob(runs: bool, verb: str) -> None:
    first, bench = calm(), calm()
    answer = retune(runner_of(first), Request(study=":memory:"), None, ignore, lambda: begin(first)).answer.plan
    assert answer.values["memory_format"] == "contiguous"  # its default
    plan = Plan(values={k: v for k, v in answer.values.items() if k != "memory_format"})
    found = retune(runner_of(bench), Request(study=":memory:"), plan, ignore, lambda: begin(bench), runs=runs)
    assert found.answer.plan == answer
    assert (found.better, found.note) == (False, f"the search {verb} the accepted plan again")


def test_any_other_answer_is_better_than_a_plan_that_does_not_run() -> None:
    bench = calm()
    found = retune(
        runner_of(bench), Request(study=":memory:"), bench.space.baseline, ignore, lambda: begin(bench), runs=False
    )
    assert (found.better, found.gain) == (True, None)


def test_a_plan_that_fails_while_it_is_compared_loses() -> None:
    bench, plan = slightly_faster(1.1)
    bench.faults[plan.key] = always(Status.OUT_OF_MEMORY, "no room")
    accepted: Answer = recommended(calm(), plan, briefing_of(bench))
    assert not compared(runner_of(bench), accepted, faster(bench)).better
    bench, plan = slightly_faster(0.9)
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY, "no room")
    found = compared(runner_of(bench), accepted, faster(bench))
    assert found.better
    assert found.note == "a block of the accepted plan failed: out of memory, no room"


def test_without_time_to_compare_the_accepted_plan_stays() -> None:
    bench, plan = slightly_faster(1.1)
    answer = recommended(bench, plan)
    bench.faults[plan.key] = during(Purpose.BLOCK, Status.SKIPPED, "the time budget ran out before it began")
    found = compared(runner_of(bench), answer, faster(bench))
    assert (found.better, found.gain) == (False, None)
    assert found.note == "no time was left to compare the answer with the accepted plan"


OLD = recommended(BENCH, BENCH.space.baseline)
NEW = recommended(BENCH, faster(BENCH), title="new")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    planfile.save(OLD, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_accepting_keeps_the_predecessor_and_leaves_no_waiting_plan(plan: Path) -> None:
    planfile.save(NEW, new_path(plan))
    assert accept(plan) == NEW
    assert names(plan.parent) == ["plan.previous.yaml", "plan.yaml"]
    assert (planfile.load(plan), planfile.load(previous_path(plan))) == (NEW, OLD)


def test_replacing_at_once_keeps_the_predecessor_and_makes_the_folder_of_a_first_plan(plan: Path) -> None:
    planfile.save(OLD, new_path(plan))  # of an earlier night
    replace_plan(NEW, plan)
    assert (planfile.load(plan), planfile.load(previous_path(plan))) == (NEW, OLD)
    assert names(plan.parent) == ["plan.previous.yaml", "plan.yaml"]
    first = plan.parent / "plans" / "gpt.yaml"
    replace_plan(NEW, first)
    assert names(first.parent) == ["gpt.yaml"]


def test_a_link_to_the_plan_stays_a_link(plan: Path) -> None:
    real = plan.rename(plan.with_name("v1.yaml"))
    plan.symlink_to(real.name)
    planfile.save(NEW, new_path(plan))
    accept(plan)
    assert plan.is_symlink()
    assert planfile.load(real) == NEW


@pytest.mark.parametrize("name", ["plan.new.yaml", "plan.previous.yaml", "plan.yaml"])
def test_a_file_that_is_not_a_plan_is_never_replaced(name: str, plan: Path) -> None:
    other = plan.with_name(name)
    other.write_text("users: data\n")
    with pytest.raises(PlanFileError, match="not an autofit plan"):
        replace_plan(NEW, plan)
    assert other.read_text() == "users: data\n"


def test_nothing_to_accept_is_an_error_and_so_is_a_damaged_plan(plan: Path) -> None:
    with pytest.raises(PlanFileError, match=r"found no new plan .* expected .*plan\.new\.yaml"):
        accept(plan)
    new_path(plan).write_text("schema: autofit.plan/1\nplan: 3\n")
    with pytest.raises(PlanFileError, match=r"plan\.new\.yaml is not valid"):
        accept(plan)
    assert planfile.load(plan) == OLD


def test_a_damaged_accepted_plan_can_be_replaced_by_the_waiting_one(plan: Path) -> None:
    planfile.save(NEW, new_path(plan))
    plan.write_text("schema: autofit.plan/1\ndamaged\n")
    accept(plan)
    assert planfile.load(plan) == NEW
    assert "damaged" in previous_path(plan).read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error_and_the_plan_is_unchanged(plan: Path) -> None:
    planfile.save(NEW, new_path(plan))
    plan.parent.chmod(0o500)
    try:
        with pytest.raises(PlanFileError, match="could not be written"):
            accept(plan)
    finally:
        plan.parent.chmod(0o700)
    assert planfile.load(plan) == OLD
