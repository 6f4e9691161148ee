"""float8 products: large linear layers of repeated blocks multiply in 8-bit floating point, by torchao."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, is_on
from autofit.strategies.blocks import find_blocks, has_compiled_part
from autofit.strategies.optional_libraries import missing, quietly, unusable
from autofit.strategies.precision import computes_in_another_type_than_bf16
from autofit.strategies.undo import Undo
from autofit.torch_internals import is_traceable_wrapper_subclass
from autofit.workloads.step import Draft

KNOB, LIBRARY = "fp8_products", "torchao"
TWIN = "_autofit_fp8_twin"
"""Attribute of a layer: the layer of torchao that computes for it. No submodule, so that names stay the same."""
ALIGNMENT = 16
"""Both dimensions of a weight must be multiples of it (`torch._scaled_mm`). Rows are padded where they are not."""
MOST_SMALL_OUTPUTS, MOST_SMALL_INPUTS = 1024, 4096
"""A layer whose outputs and inputs are no more than these stays as it is: casting its operands may take longer than its
products save (torchao's filter for scales of whole tensors, from measurements on an H100)."""
EXPECTED = 1.0
"""No gain is assumed. Llama-3 8B on 8 H100 became 1.25 times as fast under torch.compile, which fuses the casts
(reference/strategy_tuners.md 7.1). Smaller products, and steps that are not compiled, may become slower."""


class Fp8Products(Strategy):
    """Linear layers whose three products (output and both gradients) have operands in float8, scaled at each call.

    The scale of a tensor is that of its largest element. Weights, inputs that are kept for the backward pass, results
    and gradients have the types that they have without it. Layers outside repeated blocks, such as the head, keep
    their products, as is usual in float8 training.

    The modules stay the same objects: each layer's `forward` calls one of torchao that has the same parameters.
    """

    name = KNOB
    about = "computes the products of large linear layers in blocks with float8 operands"
    cost = "digits of the gradient; memory for the casts, which only compiled code makes fast"
    effect = "changes the result"
    phase = Phase.MODULES
    owns = (KNOB,)
    gated = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if the user allows it, the device has such products, and torchao and layers are at hand."""
        if not facts.training:
            return self.refuse("torchao's float8 layers are made for training")
        if facts.numerics != "any":
            return self.refuse(
                f"numerics={facts.numerics!r} keeps products in 16 bits or more; numerics='any' allows float8"
            )
        if "fp8" not in facts.capabilities:
            return self.refuse(f"this {facts.device_type} device has no fast products in float8", "device")
        if (reason := _lack(facts.model)) is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether large linear layers in blocks multiply in float8",
            expected=(1.0, EXPECTED),
        )
        return Offer((knob,))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Has the layers multiply in float8 until the context is left.

        Raises:
            SpaceError: torchao is missing, or the model has no such layers.
        """
        if not is_on(plan, KNOB):
            yield
            return
        reason = _lack(draft.model)
        if reason is not None:
            raise SpaceError(
                f"{KNOB}=True cannot be applied: {reason}; expected torchao, and large linear layers in repeated "
                "blocks. Tune again here."
            )
        with Undo() as undo:
            _put_back_code_generation(undo)
            for layer in _layers(draft.model):  # one function for all, so that blocks share compiled code
                undo.replace(vars(layer), TWIN, _twin(layer))
                undo.replace(vars(layer), "forward", MethodType(_forward, layer))
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns that the operands are cast from bfloat16, if the plan has float8 products in another precision."""
        if plan.values.get(KNOB) is True and computes_in_another_type_than_bf16(plan):
            return "float8 products replace those of bf16 autocast, which gives their operands and results 16 bits"
        return None

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that a library casts the operands, if the plan has float8 products."""
        if plan.values.get(KNOB) is not True:
            return None
        # On fake tensors, two blocks of 32 and 1,040 features seemed to need 2.2 times their memory (torch 2.13, CPU).
        return "a library casts the operands to float8 and keeps copies for a moment; a probe measures their memory"


def _lack(model: nn.Module) -> str | None:
    """Returns why no layer of `model` can multiply in float8, or None."""
    if has_compiled_part(model):
        return "the model is compiled, and its code has the products as they are; pass the model uncompiled"
    if not _layers(model):
        return (
            f"no trained linear layer in a repeated block has more than {MOST_SMALL_OUTPUTS} outputs or more than "
            f"{MOST_SMALL_INPUTS} inputs, and multiples of {ALIGNMENT} of both"
        )
    if (reason := missing(LIBRARY)) is not None:
        return reason
    try:
        _library(), _code_generation()
    except (ImportError, AttributeError, OSError) as error:
        return unusable(LIBRARY, error)
    return None


def _layers(model: nn.Module) -> tuple[nn.Linear, ...]:
    """Returns the layers that are to multiply in float8, in module order."""
    inside = {part for block in find_blocks(model) for part in block.modules()}
    linear = (part for part in model.modules() if part in inside and type(part) is nn.Linear)
    return tuple(layer for layer in linear if _is_suitable(layer))


def _is_suitable(layer: nn.Linear) -> bool:
    """Returns whether a layer has torch's own forward and a large trained weight of aligned size."""
    weight = layer._parameters.get("weight")  # another one is computed from parameters at each call
    return (
        "forward" not in vars(layer)
        and weight is not None
        and not is_traceable_wrapper_subclass(weight)  # quantized, or a part of a sharded tensor
        and weight.requires_grad
        and weight.dtype in (torch.float32, torch.bfloat16)
        and all(size % ALIGNMENT == 0 for size in weight.shape)
        and (layer.out_features > MOST_SMALL_OUTPUTS or layer.in_features > MOST_SMALL_INPUTS)
    )


def _twin(layer: nn.Linear) -> nn.Module:
    """Returns a float8 layer of torchao that has the parameters of `layer`, also if they are replaced later."""
    library = _library()
    # A layer alone is not changed by the conversion. The last product sums over rows, whose number is the batch's.
    twin: nn.Module = library.convert_to_float8_training(layer, config=_config())
    vars(twin)["_parameters"] = layer._parameters
    return twin


def _forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """Runs a layer in float8, from operands in the type of autocast. Without rows there is no largest element."""
    if not inputs.numel():
        return nn.Linear.forward(layer, inputs)
    device_type = inputs.device.type
    if torch.is_autocast_enabled(device_type):
        inputs = inputs.to(torch.get_autocast_dtype(device_type))
    output: torch.Tensor = vars(layer)[TWIN].forward(inputs)
    return output


def _put_back_code_generation(undo: Undo) -> None:
    """Registers that the compiler's code for minima and maxima becomes what it is now.

    torchao replaces it in the whole process, for a defect of Triton with float8 (`torchao.float8._inductor_patch`).
    """
    patch, code = _library()._inductor_patch, _code_generation()
    undo.put_back(vars(patch), "_PATCHED")
    for name in vars(code).keys() & {"minimum", "maximum"}:
        undo.callback(setattr, code, name, vars(code)[name])


@cache
def _library() -> Any:
    """Returns torchao's module of float8 training."""
    with quietly():
        from torchao import float8  # noqa: PLC0415  # only if it is used
        from torchao.float8 import _inductor_patch  # noqa: F401, PLC0415  # an attribute of `float8` from now on
    return float8


@cache
def _config() -> Any:
    """Returns how operands are cast. One object for all layers, so that blocks share compiled code."""
    return _library().Float8LinearConfig(pad_inner_dim=True)


def _code_generation() -> Any:
    """Returns the class with the compiler's code for each operation on a GPU."""
    from torch._inductor.codegen.triton import TritonOverrides  # noqa: PLC0415  # torchao has imported it

    return TritonOverrides
