"""Memory format: convolution weights and images in channels-last layout, which tensor cores prefer."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.layout import divides_parameters
from autofit.strategies.undo import Undo
from autofit.torch_internals import is_traceable_wrapper_subclass, use_count
from autofit.workloads.step import Draft
from autofit.workloads.tree import Batch, children, tensors

KNOB = "memory_format"
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_ALONE = 2
"""Reference count of a storage with a single tensor: the tensor, and the storage's Python object."""


class MemoryFormat(Strategy):
    """Channels-last layout of 4-d parameters, buffers and inputs. The arithmetic stays the same.

    The weights alone are enough where the model itself stacks a list of images: torch computes a convolution channels
    last if its input or its weight is, converts an input that is not, and its output stays channels last for the next
    layer. Sources: `torch.nn.utils.convert_conv2d_weight_memory_format`, and the functions `*_conv_*memory_format` and
    `*_conv_use_channels_last` in `aten/src/ATen/native/ConvUtils.h`.
    """

    name = "memory_format"
    about = "stores images and the weights of convolutions channels last"
    cost = "nothing, but random noise for images is drawn in a different order"
    effect = "rounding"
    phase = Phase.MEMORY_FORMAT
    owns = {KNOB: "default"}
    fits_update_fn = True
    same_memory = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the layouts for a model with 2-d convolutions over images."""
        if (reason := _refusal(facts)) is not None:
            return self.refuse(reason)
        values = ("default", "channels_last")
        knob = Knob(
            name=KNOB,
            values=values,
            default="default",
            about="memory layout of 4-d tensors",
            same_memory=values,
            usual=None if facts.on_host else "channels_last",
        )
        return Offer((knob,))

    def conflict(self, plan: Plan) -> str | None:
        """Returns why it cannot be applied where parameters are divided among ranks, or None."""
        if not self.acts(plan) or (layout := divides_parameters(plan)) is None:
            return None
        return f"not with {layout}: what is divided among ranks needs contiguous parameters"

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Changes the layout of the model's 4-d tensors, gradients and optimizer state until the context is left."""
        if (value := plan.values[KNOB]) != "channels_last":
            raise unknown_value(KNOB, value, "default or channels_last")
        if not _can_move(draft.model):
            raise SpaceError(
                f"{KNOB}=channels_last cannot be applied: found no 2-d convolution whose weight has its own "
                "memory; expected at least one. Tune again for this model."
            )
        with Undo() as undo:
            undo.set(draft, "memory_format", torch.channels_last)
            # Gradients and optimizer state change along: the fused optimizers on CPU read them by address, and silently
            # compute wrong updates if their strides differ from the parameter's (torch 2.13).
            for owner in _movable(draft.model):
                followers = _followers(owner, draft)
                undo.callback(_put_back, owner, draft, {name: tensor.stride() for name, tensor in followers.items()})
                strides = torch.empty(owner.shape, memory_format=torch.channels_last, device="meta").stride()
                for tensor in followers.values():
                    _lay_out(tensor, strides)
            yield


def _refusal(facts: Facts) -> str | None:
    """Returns why no layout is offered, or None."""
    weights = _weights(facts.model)
    if not weights:
        return "the model has no 2-d convolution"
    if not _has_images(facts.batch, 4) and not _lists_images(facts.batch):
        return "the batch has no 4-d floating-point tensor, and no list of 3-d ones"
    # The layout of a 1x1 kernel is both.
    if any(w.is_contiguous(memory_format=torch.channels_last) and not w.is_contiguous() for w in weights):
        return "the model is already in channels_last, which is not changed"
    if "channels_last" not in facts.capabilities:
        return f"this {facts.device_type} device has no channels_last convolutions"
    if not _can_move(facts.model):
        return "the convolution weights share memory with other tensors, so their layout cannot be changed"
    return None


def _has_images(batch: Batch, dimensions: int) -> bool:
    return any(tensor.dim() == dimensions and tensor.is_floating_point() for tensor in tensors(batch))


def _lists_images(batch: Batch) -> bool:
    """Returns whether there is a list or tuple in the batch each of whose items has an image, as those of detectors."""
    parts = (children(batch) or {}).values()
    if isinstance(batch, list | tuple) and parts and all(_has_images(part, 3) for part in parts):
        return True
    return any(_lists_images(part) for part in parts)


def _weights(model: nn.Module) -> list[torch.Tensor]:
    """Returns the 4-d parameters of the 2-d convolutions.

    `module.weight` is not read, because under a parametrization reading computes it and may change the model.
    """
    convolutions = (module for module in model.modules() if isinstance(module, CONVOLUTIONS))
    parameters = chain.from_iterable(module.parameters() for module in convolutions)
    return [parameter for parameter in parameters if not is_lazy(parameter) and parameter.dim() == 4]


def _can_move(model: nn.Module) -> bool:
    movable = {id(tensor) for tensor in _movable(model)}
    return any(id(weight) in movable for weight in _weights(model))


def _movable(model: nn.Module) -> list[torch.Tensor]:
    """Returns the 4-d parameters and buffers that do not share memory with other tensors."""
    plain = [tensor for tensor in chain(model.parameters(), model.buffers()) if _is_plain(tensor)]
    users = Counter(tensor.untyped_storage() for tensor in plain)
    return [each for each in plain if each.dim() == 4 and users[each.untyped_storage()] == 1 and _fills(each)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor` is one block of memory: not lazy, sparse, sharded or quantized."""
    return not is_lazy(tensor) and not is_traceable_wrapper_subclass(tensor) and tensor.layout is torch.strided


def _fills(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor` fills its memory, each element once, and no other process reads it."""
    if tensor.device.type == "cpu" and tensor.is_shared():  # type: ignore[no-untyped-call]  # torch has no types here
        return False
    storage = tensor.untyped_storage()
    if use_count(storage) > _ALONE:  # a flat buffer or a `.data` alias, held anywhere
        return False
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    return whole and torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _put_back(owner: torch.Tensor, draft: Draft, strides_of: dict[str, tuple[int, ...]]) -> None:
    """Restores the strides of a tensor, and of the gradients and optimizer state that training has added."""
    for name, tensor in _followers(owner, draft).items():
        _lay_out(tensor, strides_of.get(name, strides_of["owner"]))


def _followers(owner: torch.Tensor, draft: Draft) -> dict[str, torch.Tensor]:
    """Returns `owner` with its gradient and optimizer state of the same shape, by name."""
    found: dict[str, torch.Tensor] = {"owner": owner}
    if owner.grad is not None:
        found["grad"] = owner.grad
    state = {} if draft.optimizer is None else draft.optimizer.state.get(owner, {})
    found |= {f"state {name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: t for name, t in found.items() if t.shape == owner.shape and _is_plain(t) and _fills(t)}


def _lay_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> None:
    """Reorders the values of `tensor` to these strides, in place and at the same address."""
    if tensor.stride() != strides:
        values = tensor.data.clone()
        # `.data` is used so that a graph that the user still holds does not see an in-place change.
        tensor.data = tensor.data.as_strided(tensor.shape, strides).copy_(values)
