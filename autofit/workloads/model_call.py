"""How a model takes a batch: whole, as positional arguments or as keywords.

A mapping becomes keywords, a tuple or list positional arguments, anything else one argument.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from autofit.core.errors import WorkloadError
from autofit.workloads.tree import Batch

Call = Callable[[nn.Module, Any], Any]

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names under which a batch or a model's forward has the targets."""
ADVICE = "pass loss_fn(outputs, targets) or step_fn(model, batch) -> loss"
"""What a user can do where no rule for the loss applies."""


def whole_call(model: nn.Module, batch: Batch) -> tuple[Call, str]:
    """Returns how the model takes a batch when nobody says what its inputs are, and that as text."""
    if isinstance(batch, Mapping):
        check_keys(model, batch)
        return (lambda model, batch: model(**batch)), "model(**batch)"
    if not isinstance(batch, (list, tuple)) or isinstance(batch, PackedSequence):
        return (lambda model, batch: model(batch)), "model(batch)"
    if len(batch) != 2 or _second_is_target(model):
        return (lambda model, batch: model(*batch)), "model(*batch)"
    inputs, text = call_for(model, batch[0])
    return (lambda model, batch: inputs(model, batch[0])), text


def call_for(model: nn.Module, inputs: Any) -> tuple[Call, str]:
    """Returns how the model takes the inputs of a pair, and that as text."""
    if isinstance(inputs, Mapping):
        check_keys(model, inputs)
        return (lambda model, inputs: model(**inputs)), "model(**inputs)"
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        # A model of one argument that takes a list of images, or a named tuple, gets it whole.
        fits = binds(model.forward, tuple(inputs), {}) is not False
        if fits or binds(model.forward, (inputs,), {}) is False:
            return (lambda model, inputs: model(*inputs)), "model(*inputs)"
    return (lambda model, inputs: model(inputs)), "model(inputs)"


def check_keys(model: nn.Module, batch: Mapping[str, Any], without: str | None = None) -> None:
    """Checks that the model's forward takes the entries of a mapping as keywords; `without` is not passed to it.

    Raises:
        WorkloadError: it does not take all of them.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a compiled or scripted forward does not tell
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [str(key) for key in batch if key != without and key not in named]
    if unknown:
        raise WorkloadError(
            f"found the keys {', '.join(unknown)} in the batch, which {type(model).__name__}.forward does not take; "
            f"expected some of {', '.join(named)}; leave them out in collate_fn, or {ADVICE}"
        )


def _second_is_target(model: nn.Module) -> bool:
    """Returns whether the model's forward takes the targets as its second argument."""
    try:
        parameters = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return False
    return len(parameters) > 1 and parameters[1] in TARGETS


def binds(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool | None:
    """Returns whether a function can be called with these arguments; None when its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
