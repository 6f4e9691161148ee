"""How the loss of a batch is computed: given by the user, or inferred by the five rules below.

1. `step_fn(model, batch)` returns the loss.
2. `loss_fn`: a batch `(inputs, targets)` gives `loss_fn(model(inputs), targets)`; a mapping with exactly one of the
   keys labels, label, targets, target, y gives `loss_fn(output, batch[key])`. The other entries are the model's
   keywords, and `output` is the model's output, or its `.logits` if it has them.
3. The model computes its own loss: the output's `.loss` (or `["loss"]`). A mapping is called as `model(**batch)`, a
   sequence as `model(*batch)`, a pair whose second entry the model does not take as labels as `model(x)`, and a
   tensor or any other batch as `model(batch)`.
4. A pair `(x, y)` and a tensor output: a floating-point output [N, C, ...] with integer y [N, ...] uses
   `F.cross_entropy`, and so does an output [N, ..., C], as that of a language model. A floating-point y with the
   output's shape, up to a last dimension of 1, uses `F.mse_loss`.
5. Anything else is an error that shows what was found.

Inputs that are a mapping become keywords, a tuple or list positional arguments, anything else one argument. A model
with one argument that is none of the keys gets them whole. Rules 3 and 4 need one forward pass. The choice is made
once; the returned closure only computes.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.workloads.batch_algebra import describe
from autofit.workloads.tree import Batch, map_tensors, tensors
from autofit.workloads.useful_targets import ignore_index_of

Call = Callable[[nn.Module, Any], Any]

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names of the targets in a batch or in the signature of a model's forward."""
ADVICE = "pass loss_fn(outputs, targets) or step_fn(model, batch) -> loss"
"""What the user can do if no rule for the loss applies."""


def whole_call(model: nn.Module, batch: Batch) -> tuple[Call, str]:
    """Returns how to call the model on a batch whose inputs are not known, and the call as text."""
    if isinstance(batch, Mapping):
        check_keys(model, batch)
        return (lambda model, batch: model(**batch)), "model(**batch)"
    if not isinstance(batch, (list, tuple)) or isinstance(batch, PackedSequence):
        return (lambda model, batch: model(batch)), "model(batch)"
    parameters = _parameters(model.forward) or []
    if len(batch) != 2 or (len(parameters) > 1 and parameters[1].name in TARGETS):
        return (lambda model, batch: model(*batch)), "model(*batch)"
    inputs, text = call_for(model, batch[0])
    return (lambda model, batch: inputs(model, batch[0])), text


def call_for(model: nn.Module, inputs: Any) -> tuple[Call, str]:
    """Returns how to call the model on the inputs of a pair, and the call as text."""
    # A model with one argument, such as a list of images, a named tuple or a dictionary, gets the inputs whole.
    if isinstance(inputs, Mapping):
        takes_some = any(parameter.name in inputs for parameter in _parameters(model.forward) or ())
        fits = takes_some or binds(model.forward, (), dict(inputs)) is not False
        if fits or binds(model.forward, (inputs,), {}) is False:
            check_keys(model, inputs)
            return (lambda model, inputs: model(**inputs)), "model(**inputs)"
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        fits = binds(model.forward, tuple(inputs), {}) is not False
        if fits or binds(model.forward, (inputs,), {}) is False:
            return (lambda model, inputs: model(*inputs)), "model(*inputs)"
    return (lambda model, inputs: model(inputs)), "model(inputs)"


def check_keys(model: nn.Module, batch: Mapping[str, Any], without: str | None = None) -> None:
    """Checks that the model's forward accepts the keys of a mapping as keywords, except the key `without`.

    Raises:
        WorkloadError: it does not accept all of them.
    """
    parameters = _parameters(model.forward)
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [str(key) for key in batch if key != without and key not in named]
    if unknown:
        raise WorkloadError(
            f"found the keys {', '.join(unknown)} in the batch, which {type(model).__name__}.forward does not accept; "
            f"expected some of {', '.join(named)}; remove them in collate_fn, or {ADVICE}"
        )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Returns the parameters of a function. None if it has no signature, as a compiled or scripted forward."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def binds(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool | None:
    """Returns whether a function can be called with these arguments. None if its signature is unknown."""
    parameters = _parameters(function)
    if parameters is None:
        return None
    try:
        inspect.Signature(parameters).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


Compute = Callable[[nn.Module, Batch], torch.Tensor]
Update = Callable[[nn.Module, torch.optim.Optimizer, Batch], torch.Tensor]
Criterion = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LossRule:
    """How the loss of a batch is computed.

    Attributes:
        name: "step_fn", "loss_fn", "output.loss", "cross_entropy", "mse_loss" or "update_fn".
        compute: returns the loss of (model, batch), a scalar tensor with a gradient. It runs in the training loop and
            raises `WorkloadError` if the user's function or model returns anything else.
        inferred: whether autofit chose the rule. False if the user did.
        about: description of the rule in one line.
        ignore_index: the target value that the user's loss function ignores, or None.
        update: does a whole optimizer step and returns its loss, detached. `compute` then raises an error, because the
            gradient cannot be had without the update. None if the step is made from `compute`.
    """

    name: str
    compute: Compute
    inferred: bool
    about: str
    ignore_index: int | None = None
    update: Update | None = None
    _made_of: tuple[Criterion, Callable[[Criterion], Compute], Compute] | None = None  # and what makes the last of it

    @classmethod
    def by(
        cls,
        function: Criterion,
        loss_by: Callable[[Criterion], Compute],
        name: str,
        inferred: bool,
        about: str,
        ignore_index: int | None = None,
    ) -> "LossRule":
        """Returns the rule of a loss that is made of a function of outputs and targets."""
        made = loss_by(function)
        return cls(name, made, inferred, about, ignore_index, _made_of=(function, loss_by, made))

    def with_criterion(self, change: Callable[[Criterion], Criterion]) -> "LossRule":
        """Returns this rule with a changed function of outputs and targets.

        Returns the same rule if it has no such function, or if something else than that makes its loss by now.
        """
        if self._made_of is None:
            return self
        function, loss_by, made = self._made_of
        return replace(self, compute=loss_by(change(function))) if self.compute is made else self


def resolve_loss(
    model: nn.Module,
    batch: Batch,
    *,
    loss_fn: Callable[..., Any] | None = None,
    step_fn: Callable[..., Any] | None = None,
) -> LossRule:
    """Returns the rule for a model and its batches. The rules are described at the top of this module.

    Args:
        model: a model on the device of `batch`. The forward pass may change its buffers and the global random
            generators; the caller restores them.
        batch: any batch of the loader, which is run through the model; a small one takes less time.
        loss_fn: the user's function or module of (outputs, targets).
        step_fn: the user's function of (model, batch).

    Raises:
        WorkloadError: no rule applies, both functions are given, or the model does not accept the batch.
        Exception: whatever the model's own forward raises, unchanged.
    """
    if step_fn is not None and loss_fn is not None:
        raise WorkloadError("found both loss_fn and step_fn; expected one of them; step_fn computes the loss by itself")
    if step_fn is not None:
        if binds(step_fn, (None, None), {}) is False:
            raise WorkloadError(
                f"found step_fn{inspect.signature(step_fn)}; expected a function that can be called as "
                "step_fn(model, batch); change its parameters, or wrap it in a lambda"
            )
        about = "the loss is the return value of step_fn(model, batch)"
        return LossRule("step_fn", _checked(step_fn, "step_fn"), False, about)
    if getattr(model.forward, "__func__", None) is nn.Module.forward:  # a compiled model has its own on the instance
        raise WorkloadError(
            f"found a model without a forward method ({type(model).__name__}) and no step_fn; expected one of them. "
            "Pass step_fn(model, batch) -> loss"
        )
    if loss_fn is not None:
        return _from_loss_fn(model, batch, loss_fn)
    return _inferred(model, batch)


def _from_loss_fn(model: nn.Module, batch: Batch, loss_fn: Callable[..., Any]) -> LossRule:
    if isinstance(batch, Mapping):
        found = [key for key in TARGETS if key in batch]
        if len(found) != 1:
            raise WorkloadError(
                f"found {found or 'none'} of the keys {', '.join(TARGETS)} in a batch ({_shown(batch)}); expected "
                "exactly one for loss_fn; rename the key in collate_fn, or pass step_fn(model, batch) -> loss"
            )
        (target,) = found
        check_keys(model, batch, without=target)

        def of_mapping(criterion: Criterion) -> Compute:
            def compute(model: nn.Module, batch: Any) -> Any:
                output = model(**{key: value for key, value in batch.items() if key != target})
                return criterion(_logits(output), batch[target])

            return _checked(compute, "loss_fn")

        about = f"loss_fn(output, batch[{target!r}]); the other entries are the model's keywords"
        return LossRule.by(loss_fn, of_mapping, "loss_fn", False, about, ignore_index_of(loss_fn))
    if not _is_pair(batch):
        raise WorkloadError(
            f"found a batch ({_shown(batch)}); expected (inputs, targets), or a mapping with a key "
            f"{TARGETS[0]!r}, for loss_fn; pass step_fn(model, batch) -> loss instead"
        )
    call, text = call_for(model, batch[0])

    def of_pair(criterion: Criterion) -> Compute:
        return _checked(lambda model, batch: criterion(call(model, batch[0]), batch[1]), "loss_fn")

    about = f"loss_fn({text}, targets)"
    return LossRule.by(loss_fn, of_pair, "loss_fn", False, about, ignore_index_of(loss_fn))


def _inferred(model: nn.Module, batch: Batch) -> LossRule:
    call, text = whole_call(model, batch)
    with torch.no_grad():
        output = call(model, map_tensors(batch, torch.clone))
    attribute = getattr(output, "loss", None) is not None
    if attribute or (isinstance(output, Mapping) and output.get("loss") is not None):
        read: Callable[[Any], Any] = attrgetter("loss") if attribute else itemgetter("loss")
        compute = _checked(lambda model, batch: read(call(model, batch)), "output.loss")
        return LossRule("output.loss", compute, True, f"the model computes its own loss: {text}.loss")
    fits = _is_pair(batch) and all(isinstance(node, torch.Tensor) and node.dim() for node in (output, batch[1]))
    if fits and (rule := _of_output(call, text, output, batch[1])) is not None:
        return rule
    raise WorkloadError(
        f"no loss can be inferred: found a batch ({_shown(batch)}) for which {text} returns {_output_text(output)}; "
        f"expected an output with .loss, or (x, y) with an output that fits y; {ADVICE}{_hint(output)}"
    )


def _of_output(call: Call, text: str, output: torch.Tensor, targets: torch.Tensor) -> LossRule | None:
    """Returns the rule for a tensor output and the targets of a pair, by their shapes and types; None if none fits."""

    def by_class(criterion: Criterion) -> Compute:
        return _checked(lambda model, batch: criterion(call(model, batch), batch[1]), "cross_entropy")

    def of_rows(criterion: Criterion) -> Compute:
        def compute(model: nn.Module, batch: Any) -> Any:
            return criterion(call(model, batch).flatten(0, -2), batch[1].flatten())

        return _checked(compute, "cross_entropy")

    part = targets[: output.shape[0]]
    if _classifies(output, part, targets):
        about = f"{text} is [N, C, ...] and y is integer [N, ...]: F.cross_entropy"
        return LossRule.by(F.cross_entropy, by_class, "cross_entropy", True, about)
    if output.dim() > 2 and _classifies(output.movedim(-1, 1), part, targets):
        about = f"{text} is [N, ..., C] and y is integer [N, ...]: F.cross_entropy of all its rows"
        return LossRule.by(F.cross_entropy, of_rows, "cross_entropy", True, about)
    shape, wanted = tuple(output.shape), tuple(part.shape)
    floating = output.is_floating_point() and part.is_floating_point()
    if not floating or not (shape in (wanted, (*wanted, 1)) or (*shape, 1) == wanted):
        return None
    if output.dim() == targets.dim():
        compute = _checked(lambda model, batch: F.mse_loss(call(model, batch), batch[1]), "mse_loss")
    else:  # [N, 1] against [N] would be broadcast to [N, N]
        compute = _checked(
            lambda model, batch: F.mse_loss(call(model, batch).reshape(batch[1].shape), batch[1]), "mse_loss"
        )
    about = f"{text} and y are floating-point and have the same shape: F.mse_loss"
    return LossRule("mse_loss", compute, True, about)


def _checked(compute: Callable[..., Any], name: str) -> Compute:
    """Wraps `compute` with a check that its result is a loss that can be trained on."""

    def checked(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = compute(model, batch)
        if isinstance(loss, torch.Tensor) and loss.dim() == 0 and (loss.requires_grad or not torch.is_grad_enabled()):
            return loss
        if not isinstance(loss, torch.Tensor):
            found = a_type(loss)
            remedy = "return the loss tensor alone, not in a tuple or dict, and not as a number (no .item())"
            if loss is None and name == "output.loss":
                remedy = "add the labels that the model needs to the batch"
            elif loss is None:
                remedy = "return the loss"
        elif loss.dim():
            found = f"a tensor of shape {list(loss.shape)}"
            remedy = "reduce it, as with reduction='mean' or .mean()"
        else:
            found = "a tensor without gradient"
            remedy = "do not detach it or compute it under torch.no_grad, and leave some parameter requires_grad=True"
        raise WorkloadError(f"{name} returned {found}; expected a scalar tensor with a gradient; {remedy}")

    return checked


def _classifies(output: torch.Tensor, part: torch.Tensor, targets: torch.Tensor) -> bool:
    """Returns whether an output holds scores and the targets hold classes, with every class in range.

    All targets are checked, since a class out of range makes a CUDA device unusable for the rest of the process.
    """
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if not (whole and output.is_floating_point() and output.dim() >= 2 and output.shape[1] >= 2):
        return False
    if output.shape[:1] + output.shape[2:] != part.shape:
        return False
    classes = targets[targets != -100]
    return classes.numel() == 0 or bool(classes.min() >= 0 and classes.max() < output.shape[1])


def _logits(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _is_pair(batch: Batch) -> bool:
    return isinstance(batch, (list, tuple)) and len(batch) == 2


def _shown(batch: Batch) -> str:
    """Returns the type and structure of a batch."""
    has_tensors = next(tensors(batch), None) is not None
    return f"{type(batch).__name__}: {describe([batch])}" if has_tensors else type(batch).__name__


def _output_text(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"{str(output.dtype).removeprefix('torch.')}{list(output.shape)}"
    if isinstance(output, Mapping):
        return f"{a_type(output)} with {', '.join(map(str, output))}"
    return a_type(output)


def _hint(output: Any) -> str:
    """Suggests a step_fn for outputs that contain the loss in another form."""
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return "; if the output is the loss: step_fn=lambda model, batch: model(batch)"
    for at, part in enumerate(output if isinstance(output, tuple) else ()):
        if isinstance(part, torch.Tensor) and part.dim() == 0:
            return f"; if that tuple holds the loss: step_fn=lambda model, batch: model(*batch)[{at}]"
    if isinstance(output, Mapping) and "loss" in output:
        return "; the output's loss is None: the batch may lack labels"
    return ""
