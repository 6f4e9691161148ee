"""One suite over every strategy: on a step that the user's `update_fn` does, it is refused, or keeps the gradients."""

import pytest
import torch

from autofit import devices
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.gates.gradients import Steps
from autofit.gates.technique import update
from autofit.guard import Guard
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts, Strategy
from autofit.workloads.counted_batches import Counted
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import Workload
from tests.conformance.test_strategies import EVERY_CAPABILITY
from tests.digests import digest_in
from tests.workloads import gans

HOST = devices.choose("cpu")
BATCH = Counted((torch.randn(8, gans.WIDTH),), 8)


def facts(workload: Workload, capabilities: frozenset[str]) -> Facts:
    return Facts(
        model=workload.model,
        batch=BATCH.batch,
        optimizer=workload.make_optimizer(),
        device_type="cpu",
        capabilities=capabilities,
        numerics="exact",
        training=True,
        micro_batch_size=8,
        update_fn=True,
    )


def draft(workload: Workload) -> Draft:
    return Draft.of(workload, rule_of_update(gans.update), torch.device("cpu"))


def plans(member: Strategy, workload: Workload) -> list[Plan]:
    knobs = member.offered(facts(workload, HOST.capabilities())).knobs
    return [Plan(values={knob.name: value}) for knob in knobs for value in knob.values if value != knob.default]


def test_some_strategies_fit_and_some_do_not() -> None:
    assert {member.fits_update_fn for member in members()} == {True, False}


@pytest.mark.parametrize("member", members(), ids=lambda member: str(member.name))
def test_a_strategy_that_changes_the_inside_of_a_step_is_refused(member: Strategy) -> None:
    if member.fits_update_fn:
        return
    offer = member.offered(facts(gans.workload(), EVERY_CAPABILITY))
    assert offer.knobs == ()
    assert [refusal.reason for refusal in offer.refused] == [
        "update_fn does the whole optimizer step, and this would change its inside"
    ]
    for name in member.owns:
        with pytest.raises(SpaceError, match="update_fn does the whole optimizer step"):
            prepare(Plan(values={name: 1}), draft(gans.workload()), members())


@pytest.mark.parametrize("member", members(), ids=lambda member: str(member.name))
def test_a_strategy_that_fits_keeps_the_gradients_and_is_undone(member: Strategy) -> None:
    for plan in plans(member, gans.workload()):
        workload = gans.workload()
        guard = Guard.of(workload)
        before = digest_in(guard)

        def build(plan: Plan, workload: Workload = workload) -> TrainStep:
            return prepare(plan, draft(workload), members())

        found = update(Steps(build, 0, guard.restore, guard.differences), plan, BATCH)
        assert found.passed, f"{plan}: {found.reason}"
        assert digest_in(guard) == before
        forwards = [vars(module).get("forward") for module in workload.model.modules()]
        groups = options(workload)
        with build(plan) as step:
            step(BATCH.batch)
        assert [vars(module).get("forward") for module in workload.model.modules()] == forwards
        assert options(workload) == groups


def options(workload: Workload) -> list[dict[str, object]]:
    made = workload.make_optimizer()
    assert made is not None
    return [{name: value for name, value in group.items() if name != "params"} for group in made.param_groups]
