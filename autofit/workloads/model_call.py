"""How a batch is passed to a model: as one argument, as positional arguments or as keywords.

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
    if len(batch) != 2 or _second_is_target(model):
        return (lambda model, batch: model(*batch)), "model(*batch)"
    inputs, text = call_for(model, batch[0])
    return (lambda model, batch: inputs(model, batch[0])), text


def call_for(model: nn.Module, inputs: Any) -> tuple[Call, str]:
    """Returns how to call the model on the inputs of a pair, and the call as text."""
    if isinstance(inputs, Mapping):
        check_keys(model, inputs)
        return (lambda model, inputs: model(**inputs)), "model(**inputs)"
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        # A model with one argument, such as a list of images or a named tuple, gets the inputs as that argument.
        fits = binds(model.forward, tuple(inputs), {}) is not False
        if fits or binds(model.forward, (inputs,), {}) is False:
            return (lambda model, inputs: model(*inputs)), "model(*inputs)"
    return (lambda model, inputs: model(inputs)), "model(inputs)"


def check_keys(model: nn.Module, batch: Mapping[str, Any], without: str | None = None) -> None:
    """Checks that the model's forward accepts the keys of a mapping as keywords, except the key `without`.

    Raises:
        WorkloadError: it does not accept all of them.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a compiled or scripted forward has no signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [str(key) for key in batch if key != without and key not in named]
    if unknown:
        raise WorkloadError(
            f"found the keys {', '.join(unknown)} in the batch, which {type(model).__name__}.forward does not accept; "
            f"expected some of {', '.join(named)}; remove them in collate_fn, or {ADVICE}"
        )


def _second_is_target(model: nn.Module) -> bool:
    """Returns whether the second argument of the model's forward is the targets."""
    try:
        parameters = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return False
    return len(parameters) > 1 and parameters[1] in TARGETS


def binds(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool | None:
    """Returns whether a function can be called with these arguments. None if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
