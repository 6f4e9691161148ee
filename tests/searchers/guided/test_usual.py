"""What an expert writes at once on an accelerator runs right after the baseline."""

from autofit.core.knob import Knob
from autofit.core.space import SearchSpace
from autofit.search.search import run
from autofit.searchers.guided.throughput import LARGER, usual_plans
from tests.fakes import OPTIMIZER, PRECISION, small_bench, space_of, tuning_of

USUAL = PRECISION.model_copy(update={"usual": "bf16"})
COMPILED = Knob(name="compiled", values=(False, True), default=False, usual=True, warm_up_s=(0.0, 20.0))


def space(*knobs: Knob) -> SearchSpace:
    return space_of(knobs, (4, 8, 16, 32, 64), 8)


def test_usual_values_come_together_at_a_larger_micro_batch_then_at_the_users() -> None:
    own = space(USUAL, OPTIMIZER).baseline
    (plans,) = usual_plans(space(USUAL, OPTIMIZER))
    assert [plan.micro_batch_size for plan in plans] == [8 * LARGER, 8]
    assert all(plan.combination.changes_from(own.combination) == {"precision": "bf16"} for plan in plans)


def test_plans_without_what_must_warm_up_come_first() -> None:
    groups = usual_plans(space(USUAL, COMPILED))
    assert [[(plan.values["compiled"], plan.micro_batch_size) for plan in group] for group in groups] == [
        [(False, 32), (False, 8)], [(True, 32), (True, 8)],
    ]  # fmt: skip
    assert {plan.values["precision"] for group in groups for plan in group} == {"bf16"}


def test_a_search_runs_what_must_warm_up_right_after_the_plan_without_it() -> None:
    bench = small_bench(space=space(USUAL, COMPILED))
    run(tuning_of(bench))
    quick, every = usual_plans(bench.space)
    assert bench.probes()[:3] == [bench.space.baseline, quick[0], every[0]]


def test_without_usual_values_there_is_no_usual_plan() -> None:
    assert usual_plans(space(PRECISION, OPTIMIZER)) == []


def test_a_search_runs_one_usual_plan_right_after_the_baseline() -> None:
    bench = small_bench(space=space(USUAL, OPTIMIZER))
    run(tuning_of(bench))
    (usual,) = usual_plans(bench.space)
    assert bench.probes()[:2] == [bench.space.baseline, usual[0]]
    assert usual[1] not in bench.probes()
