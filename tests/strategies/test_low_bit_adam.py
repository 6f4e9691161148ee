"""A library's update of the user's optimizer: what it is refused for, and what is in use, loaded and left behind."""

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from autofit.strategies.low_bit_adam import LowBitAdam, State, Update, refusal, updated_by
from autofit.workloads.step import StepBatch
from tests.strategies.low_bit_models import adamw, batch, draft, losses, plain


class Halving(LowBitAdam):
    """A library in float16: it halves each weight, and counts in its state."""

    library: ClassVar[str] = "halving"
    extra: ClassVar[str] = "halving"

    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        return None

    def refusal(self, optimizer: torch.optim.Optimizer) -> str | None:
        return None

    def quantizes(self, parameter: torch.Tensor) -> bool:
        return True

    def is_packed(self, parameter: torch.Tensor, state: State) -> bool:
        return "half" in state

    def packed(self, parameter: torch.Tensor, state: State) -> State:
        return {"step": state["step"], "half": state["exp_avg"].half()}

    def unpacked(self, parameter: torch.Tensor, state: State) -> State:
        half = state["half"].float()
        return {"step": state["step"], "exp_avg": half, "exp_avg_sq": half.clone()}

    def update(self) -> Update:
        def update(group: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                state.setdefault("step", torch.tensor(0.0)).add_(1)
                state["half"] = torch.full_like(parameter, 0.5, dtype=torch.float16)
                with torch.no_grad():
                    parameter.mul_(0.5)

        return update


def adam(made: Any) -> Any:
    assert isinstance(made.optimizer, torch.optim.Adam)
    return made.optimizer


def test_the_state_is_packed_at_once_and_its_memory_is_free_in_the_first_step() -> None:
    made = draft()
    losses(plain(made), 1)
    optimizer = adam(made)
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    seen: list[list[int]] = []
    made.model.register_forward_pre_hook(lambda module, inputs: seen.append([m.numel() for m in moments]))
    with updated_by(Halving(), optimizer, made):
        step = plain(made)
        assert not any(moment.numel() for moment in moments)
        losses(step, 1)
        assert seen == [[0, 0, 0, 0]]
        assert {tuple(state) for state in optimizer.state.values()} == {("step", "half")}
    assert all(state["exp_avg"] is moment for state, moment in zip(optimizer.state.values(), moments, strict=True))
    assert all(moment.eq(0.5).all() and moment.numel() for moment in moments)


def test_gradients_alone_lose_no_digits_of_the_state() -> None:
    made = draft()
    losses(plain(made), 1)
    optimizer = adam(made)
    before = {p: dict(state) for p, state in optimizer.state.items()}
    values = [state["exp_avg"].clone() for state in optimizer.state.values()]
    with updated_by(Halving(), optimizer, made):
        plain(made).backward(StepBatch.of([batch()]))
    assert [id(v) for s in optimizer.state.values() for v in s.values()] == [
        id(v) for s in before.values() for v in s.values()
    ]
    for state, value in zip(optimizer.state.values(), values, strict=True):
        assert torch.equal(state["exp_avg"], value)


def test_a_checkpoint_loaded_without_a_step_stays_loaded() -> None:
    made, other = draft(), draft()
    losses(plain(made), 1)
    losses(plain(other), 3)
    with updated_by(Halving(), adam(made), made):
        adam(made).load_state_dict(adam(other).state_dict())
    for mine, theirs in zip(adam(made).state.values(), adam(other).state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])


def test_a_checkpoint_that_is_loaded_keeps_its_tensors() -> None:
    made, other = draft(), draft()
    losses(plain(other), 2)
    saved = adam(other).state_dict()
    kept = [state["exp_avg"].clone() for state in saved["state"].values()]
    with updated_by(Halving(), adam(made), made):
        adam(made).load_state_dict(saved)
        losses(plain(made), 1)
    for state, moment in zip(saved["state"].values(), kept, strict=True):
        assert torch.equal(state["exp_avg"], moment)


def test_a_scheduler_made_before_or_meanwhile_counts_the_steps_without_a_warning() -> None:
    made = draft()
    before = torch.optim.lr_scheduler.StepLR(adam(made), 1, 0.5)
    own = vars(adam(made))["step"]
    with updated_by(Halving(), adam(made), made):
        meanwhile = torch.optim.lr_scheduler.StepLR(adam(made), 1, 0.5)
        losses(plain(made), 1)
        before.step()
        meanwhile.step()
    assert vars(adam(made))["step"] is own


def test_a_closure_is_evaluated_with_gradients() -> None:
    made = draft()
    with updated_by(Halving(), adam(made), made):
        assert adam(made).step(torch.is_grad_enabled) is True


def test_a_step_that_is_dropped_stays_as_it_is() -> None:
    made = draft()
    context = updated_by(Halving(), adam(made), made)
    context.__enter__()
    losses(plain(made), 1)
    del context
    assert {tuple(state) for state in adam(made).state.values()} == {("step", "half")}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1), "found SGD"),
        (torch.optim.NAdam, "found NAdam"),
        (lambda params: torch.optim.AdamW(params, amsgrad=True), "no amsgrad"),
        (lambda params: torch.optim.AdamW(params, maximize=True), "no maximize"),
        (lambda params: torch.optim.AdamW(params, capturable=True), "no capturable"),
        (lambda params: torch.optim.AdamW(params, differentiable=True), "no differentiable"),
    ],
)
def test_what_no_library_can_do_is_refused(make: Any, words: str) -> None:
    made = draft(make)
    assert made.optimizer is not None
    assert words in str(refusal(made.optimizer, made.model))


def test_unusual_models_and_parameters_are_refused() -> None:
    embedding = nn.Embedding(4, 4, sparse=True)
    assert "sparse" in str(refusal(adamw(embedding.parameters()), embedding))
    half = nn.Linear(2, 2).half()
    assert "torch.float16" in str(refusal(adamw(half.parameters()), half))
    images = nn.Conv2d(3, 8, 3)
    images.weight.data = images.weight.data.to(memory_format=torch.channels_last)
    assert "not contiguous" in str(refusal(adamw(images.parameters()), images))
    made = draft()
    adam(made).register_step_post_hook(lambda *arguments: None)
    assert "hooks" in str(refusal(adam(made), made.model))
    assert refusal(adam(draft()), draft().model) is None
