"""Promises 1, 3, 4 and 7 for a step that the user's `update_fn` does, with several models and optimizers."""

import copy
from typing import Any

import pytest
import torch

from autofit.core.errors import UserCodeError, WorkloadError
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.fit import Fit
from autofit.workloads.workload import Terms
from tests.promises.conftest import TunedGan
from tests.workloads import gans


def test_a_search_leaves_no_trace(tuned_gan: TunedGan) -> None:
    before, after = tuned_gan.digests
    assert before == after


def test_its_plan_is_proven_with_the_batch_that_was_asked_for(tuned_gan: TunedGan) -> None:
    fit = tuned_gan.fit
    proofs = [event.trial for event in tuned_gan.events if event.kind == "proof" and event.trial is not None]
    assert (proofs[-1].plan, proofs[-1].purpose) == (fit.plan, Purpose.PROOF)
    assert proofs[-1].outcome.measurement == fit.proof
    assert fit.proof.worst_steps >= 3
    assert {plan.global_batch_size for plan in (fit.plan, *(each.plan for each in fit.alternatives))} == {8}
    assert {plan.accumulation_steps for plan in (fit.plan, *(each.plan for each in fit.alternatives))} == {1}


def test_what_would_change_its_inside_is_left_out_with_a_reason(tuned_gan: TunedGan) -> None:
    reasons = {refusal.name: refusal.reason for refusal in tuned_gan.fit.answer.refused}
    for name in ("accumulation", "optimizer_in_backward", "linear_cross_entropy", "compilation"):
        assert reasons[name].startswith("update_fn does the whole optimizer step")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_search_that_is_cut_off_leaves_no_trace(gan: TunedGan, error: type[BaseException]) -> None:
    before = gan.digest()

    def stop(event: object) -> None:
        gan.events.append(event)  # type: ignore[arg-type]
        if sum(event.kind == "trial" for event in gan.events) == 2:
            raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        gan.tune(progress=stop)
    assert gan.digest() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("after", [1, 9])
def test_an_error_between_its_two_updates_leaves_no_trace(
    gan: TunedGan, error: type[BaseException], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls, step = gan.digest(), list[int](), torch.optim.Adam.step

    def failing(self: torch.optim.Adam, *args: Any) -> Any:
        calls.append(1)
        if len(calls) > after and type(self) is torch.optim.Adam:  # the generator's: the critic was updated before
            raise error("between two updates")
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", failing)
        with pytest.raises(error if error is KeyboardInterrupt else UserCodeError, match="between two updates"):
            gan.tune(strategies=("batching",))
    assert gan.digest() == before


def by_hand(models: Any, optimizers: dict[str, torch.optim.Optimizer]) -> list[float]:
    return [float(sum(gans.update(models, optimizers, batch).values()).detach()) for batch in gans.loader()]  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{}, {"optimizer_implementation": "fused"}])
def test_its_step_trains_as_the_users_loop_to_the_bit(
    tuned_gan: TunedGan, gan: TunedGan, changes: dict[str, Any]
) -> None:
    fit = tuned_gan.fit
    plan = Plan(values={**fit.baseline.plan.values, **changes})
    chosen = Fit(fit.answer.model_copy(update={"plan": plan}), Terms(update_fn=gans.update))
    theirs, others = copy.deepcopy((gan.models, gan.optimizers))
    for optimizer in others.values():
        for group in optimizer.param_groups:
            group["fused"] = True if changes else None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = by_hand(theirs, others)
    with torch.random.fork_rng(), chosen.prepare(gan.models, gans.loader(), gan.optimizers) as step:
        torch.manual_seed(0)
        assert [float(step(batch)) for batch in step.loader] == expected
    for name, value in gan.models.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name
    for name, optimizer in gan.optimizers.items():
        for kept, other in zip(optimizer.state.values(), others[name].state.values(), strict=True):
            assert all(torch.equal(kept[key], other[key]) for key in kept)


def test_a_loaded_plan_asks_for_the_function(tuned_gan: TunedGan, gan: TunedGan) -> None:
    fit = tuned_gan.fit
    loaded = Fit(fit.answer)
    with pytest.raises(WorkloadError, match="found no update_fn; expected the one that the plan was tuned with"):
        loaded.prepare(gan.models, gan.loader, gan.optimizers)
    with pytest.raises(WorkloadError, match="found scaler beside update_fn"):
        fit.prepare(gan.models, gan.loader, scaler=torch.amp.GradScaler("cpu"))
    with loaded.prepare(gan.models, gan.loader, gan.optimizers, update_fn=gans.update) as step:
        assert torch.isfinite(step(next(iter(step.loader))))
