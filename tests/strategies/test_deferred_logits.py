"""Deferred logits: losses that need no logits, and every other use, which sees the ordinary ones."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.strategies.deferred_logits import DeferredLogits, DeferringForward, Usage

SAMPLES, TOKENS, FEATURES, CLASSES = 4, 9, 8, 61
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Result:
    """The loss and the gradients of one step."""

    def __init__(self, loss_fn: Loss, usage: Usage | None, dtype: torch.dtype | None = None) -> None:
        torch.manual_seed(0)
        layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(SAMPLES, TOKENS, FEATURES, requires_grad=True)
        target = torch.randint(0, CLASSES, (SAMPLES, TOKENS))
        target[0, :3] = -100
        if usage is not None:
            vars(layer)["forward"] = DeferringForward(layer, usage)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            self.loss = loss_fn(layer(hidden), target)
        self.loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        self.gradients = [hidden.grad, layer.weight.grad, layer.bias.grad]


def flat(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


def last_inferred(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(SAMPLES * TOKENS, -1), target.reshape(-1))


def shifted(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten(), reduction="none").mean()


def shifted_by_ellipsis(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    moved = logits.float()[..., :-1, :].contiguous()
    loss: torch.Tensor = nn.CrossEntropyLoss(label_smoothing=0.1)(moved.view(-1, CLASSES), target[..., 1:].reshape(-1))
    return loss


def classes_second(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.transpose(1, 2), target)


def classes_second_by_permute(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    each = F.cross_entropy(logits.permute(0, 2, 1), target, reduction="none")
    return (each * torch.arange(TOKENS)).sum(1).mean()


def of_chosen_tokens(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    chosen = target != -100
    return F.cross_entropy(logits[chosen], target[chosen])


def of_one_token(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, -1], target[:, -1])


FUSED: list[Loss] = [
    flat, last_inferred, shifted, shifted_by_ellipsis, classes_second, classes_second_by_permute,
    of_chosen_tokens, of_one_token,
]  # fmt: skip


@pytest.mark.parametrize("loss_fn", FUSED)
def test_loss_needs_no_logits_and_has_the_ordinary_gradient(loss_fn: Loss) -> None:
    usage = Usage()
    ours, theirs = Result(loss_fn, usage), Result(loss_fn, None)
    assert usage.fused_bytes
    assert not usage.computed_for
    torch.testing.assert_close(ours.loss, theirs.loss)
    for one, other in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("loss_fn", FUSED)
def test_under_autocast_type_and_rounding_are_the_ordinary_ones(loss_fn: Loss) -> None:
    usage = Usage()
    ours, theirs = Result(loss_fn, usage, torch.bfloat16), Result(loss_fn, None, torch.bfloat16)
    assert usage.fused_bytes
    assert ours.loss.dtype == theirs.loss.dtype
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=2e-3, atol=0)
    for one, other in zip(ours.gradients, theirs.gradients, strict=True):
        assert one is not None
        assert other is not None
        assert (one - other).norm() <= 1e-2 * other.norm()


def capped(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return flat(torch.tanh(logits / 30) * 30, target)


def changed_in_place(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Views see the change, copies made before do not."""
    view, copied = logits[:, :-1], logits[torch.arange(SAMPLES)]
    logits.div_(2.0)
    return F.cross_entropy(view.flatten(0, 1), target[:, 1:].flatten()) + flat(copied, target)


def masked_classes(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits[..., -1] = -1e9
    return flat(logits, target.clamp(max=CLASSES - 2))


def of_probabilities(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    wanted = F.one_hot(target.clamp(min=0), CLASSES).float()
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))


def with_penalty(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return flat(logits, target) + 1e-3 * torch.logsumexp(logits, -1).square().mean()


def of_two(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return flat(torch.cat([logits, logits]), torch.cat([target, target]))


class Own(torch.autograd.Function):
    """A loss that gets logits without `__torch_function__`."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits.softmax(-1), target)
        return flat(logits, target)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        probabilities, target = ctx.saved_tensors
        useful = (target >= 0).unsqueeze(-1)
        gradient = (probabilities - F.one_hot(target.clamp(min=0), CLASSES)) * useful / useful.sum()
        return gradient * upstream, None


def own_function(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = Own.apply(logits, target)  # type: ignore[no-untyped-call]  # torch has no types here
    return loss


@pytest.mark.parametrize(
    "loss_fn", [capped, changed_in_place, masked_classes, of_probabilities, with_penalty, of_two, own_function]
)
def test_any_other_use_sees_the_ordinary_logits(loss_fn: Loss) -> None:
    usage = Usage()
    ours, theirs = Result(loss_fn, usage), Result(loss_fn, None)
    assert usage.computed_for
    torch.testing.assert_close(ours.loss, theirs.loss)
    for one, other in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(one, other)


def deferred(layer: nn.Linear) -> torch.Tensor:
    vars(layer)["forward"] = DeferringForward(layer)
    output: torch.Tensor = layer(torch.ones(2, 3, FEATURES))
    assert isinstance(output, DeferredLogits)
    return output


def test_logits_are_usable_after_the_loss_also_without_gradients() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    logits = deferred(layer)
    flat(logits, torch.zeros(2, 3, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    with torch.no_grad():
        best = logits.argmax(-1)
    expected = nn.Linear.forward(layer, torch.ones(2, 3, FEATURES))
    assert torch.equal(best, expected.argmax(-1))
    assert torch.equal(logits.detach(), expected.detach())
    assert torch.equal(copy.deepcopy(logits.detach()), expected.detach())
    assert logits.tolist() == expected.tolist()


def test_logits_that_were_computed_without_gradients_still_have_one() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    logits = deferred(layer)
    with torch.no_grad():
        logits.argmax(-1)
    flat(logits, torch.zeros(2, 3, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert layer.weight.grad is not None


def test_shape_and_type_are_known_without_computing() -> None:
    usage, layer = Usage(), nn.Linear(FEATURES, CLASSES)
    vars(layer)["forward"] = DeferringForward(layer, usage)
    logits = layer(torch.ones(2, 3, FEATURES))
    assert logits.shape == (2, 3, CLASSES)
    assert (logits.dtype, logits.device, logits.requires_grad, len(logits)) == (
        torch.float32,
        torch.device("cpu"),
        True,
        2,
    )
    assert {logits: 1}[logits] == 1
    assert not usage.computed_for


def test_logits_that_are_used_after_an_update_are_an_error() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    logits = deferred(layer)
    flat(logits, torch.zeros(2, 3, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    with pytest.raises(RuntimeError, match="before the optimizer's step"):
        logits.argmax(-1)


def test_without_gradients_nothing_is_deferred() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    vars(layer)["forward"] = DeferringForward(layer)
    with torch.no_grad():
        assert type(layer(torch.ones(2, FEATURES))) is torch.Tensor


def of_layer(layer: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
    return flat(layer(hidden), torch.arange(6).view(2, 3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_head_has_the_ordinary_gradient(reentrant: bool) -> None:
    layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(2, 3, FEATURES, requires_grad=True)
    (expected,) = torch.autograd.grad(of_layer(layer, hidden), layer.weight)
    vars(layer)["forward"] = DeferringForward(layer)
    checkpoint(of_layer, layer, hidden, use_reentrant=reentrant).backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, expected)


def test_tensors_that_are_kept_on_the_host_give_the_ordinary_gradient() -> None:
    layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(2, 3, FEATURES)
    (expected,) = torch.autograd.grad(of_layer(layer, hidden), layer.weight)
    vars(layer)["forward"] = DeferringForward(layer)
    with torch.autograd.graph.save_on_cpu():
        loss = of_layer(layer, hidden)
    torch.testing.assert_close(torch.autograd.grad(loss, layer.weight)[0], expected)


def test_scaled_loss_in_fp16_has_the_gradient_of_float32() -> None:
    layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(2, 3, FEATURES)
    (expected,) = torch.autograd.grad(of_layer(layer, hidden), layer.weight)
    vars(layer)["forward"] = DeferringForward(layer)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = of_layer(layer, hidden)
    (scaled,) = torch.autograd.grad(loss * 2.0**16, layer.weight)
    assert (scaled / 2.0**16 - expected).norm() <= 2e-3 * expected.norm()


def test_transforms_of_torch_func_see_ordinary_logits() -> None:
    layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(2, 3, FEATURES)
    (expected,) = torch.autograd.grad(of_layer(layer, hidden), layer.weight)
    vars(layer)["forward"] = DeferringForward(layer)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        output = torch.func.functional_call(layer, {"weight": weight, "bias": layer.bias}, (hidden,))
        return flat(output, torch.arange(6).view(2, 3))

    found = torch.func.grad(loss)(layer.weight.detach())
    torch.testing.assert_close(found, expected)


def test_compiled_model_computes_its_logits() -> None:
    layer, hidden = nn.Linear(FEATURES, CLASSES), torch.randn(2, 3, FEATURES)
    expected = of_layer(layer, hidden)
    vars(layer)["forward"] = DeferringForward(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(flat(compiled(hidden), torch.arange(6).view(2, 3)), expected)


def test_copied_layer_computes_with_its_own_weights() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    vars(layer)["forward"] = DeferringForward(layer)
    other = copy.deepcopy(layer)
    nn.init.zeros_(other.weight)
    nn.init.zeros_(other.bias)
    assert not (other(torch.ones(2, FEATURES)) + 0).any()
