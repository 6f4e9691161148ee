"""Precision: the number format of matrix products and convolutions. Weights stay float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft
from autofit.workloads.update import WHOLE

KNOB = "precision"
VALUES = ("fp32", "tf32", "bf16", "fp16")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

GENERAL_SETTING: Any = torch.backends
CUDA_SETTING: Any = torch.backends.cudnn
TF32_SETTINGS: tuple[Any, ...] = (torch.backends.cuda.matmul, CUDA_SETTING.conv, CUDA_SETTING.rnn)
"""Objects with `fp32_precision`: one for all devices; one for CUDA, which inherits from it; and those of CUDA's
operations, which inherit from CUDA's. cuDNN's recurrent layers and convolutions must have the same value, because the
older flag that covers both raises an error if they differ."""
OLDER_FLAGS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (torch.backends.cuda.matmul, (torch.backends.cuda.matmul,)),
    (CUDA_SETTING, (CUDA_SETTING.conv, CUDA_SETTING.rnn)),
)
"""Objects with the older `allow_tf32`, and the newer settings that a write to it changes."""

EXPECTED = {"fp32": 1.0, "tf32": 1.3, "bf16": 1.5, "fp16": 1.45}
"""Expected speed-up on an accelerator. On an H100, four layers of GPT-2 became 2.1 times as fast in TF32 and fp16 and
2.2 times in bf16, and a small residual network slower in all of them."""
CEILING = {"fp32": 1.0, "tf32": 4.0, "bf16": 5.0, "fp16": 5.0}
"""Largest plausible speed-up on an accelerator: products alone gain more (an H100 computes 67 TFLOP/s in float32, 494
in TF32 and 989 in bf16), but a step also moves tensors."""


class Precision(Strategy):
    """Autocast to bfloat16 or float16, or TF32 for float32 products on CUDA.

    The default "fp32" changes nothing: TF32 stays on if the user has switched it on.
    """

    name = "precision"
    about = "computes products in TF32, bfloat16 or float16"
    cost = "digits of the gradient"
    effect = "rounding"
    phase = Phase.ARITHMETIC
    owns = {KNOB: "fp32"}
    fits_update_fn = True
    gated = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the precisions that the device supports, if the user allows them and has not already chosen one."""
        if (reason := _refusal(facts)) is not None:
            return self.refuse(reason)
        missing = {value: why for value in VALUES[1:] if (why := _lack(value, facts)) is not None}
        refused = tuple(
            Refusal(name=f"{KNOB}={value}", reason=why, origin="" if value in facts.capabilities else "device")
            for value, why in missing.items()
        )
        values = tuple(value for value in VALUES if value not in missing)
        if len(values) == 1:
            return Offer(refused=refused)
        accelerated = not facts.on_host
        knob = Knob(
            name=KNOB,
            values=values,
            default="fp32",
            about="number format of products and convolutions",
            # Products keep half as many bytes for the backward pass. Norms and losses keep float32.
            growth=tuple(0.65 if value in AUTOCAST else 1.0 for value in values),
            same_memory=("tf32",),  # it changes how products are computed, not what is stored
            expected=tuple(map(EXPECTED.__getitem__, values)) if accelerated else (),
            ceiling=tuple(map(CEILING.__getitem__, values)) if accelerated else (),
            usual=next((value for value in AUTOCAST if value in values and accelerated), None),
        )
        return Offer((knob,), refused)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Sets the draft's autocast and gradient scaler, or the process's TF32 settings, until the context is left."""
        value = plan.values[KNOB]
        if value not in VALUES or (value == "tf32" and draft.device.type != "cuda"):
            raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)} (tf32 on CUDA only)")
        with Undo() as undo:
            undo.enter_context(_tf32() if value == "tf32" else _autocast(draft, str(value)))
            yield


def scales_gradients(plan: Plan) -> bool:
    """Returns whether training under `plan` needs a gradient scaler."""
    return plan.values.get(KNOB) == "fp16"


def format_of(plan: Plan) -> KnobValue:
    """Returns the number format in which `plan` computes products."""
    return plan.values.get(KNOB, "fp32")


def lack_of(value: str, facts: Facts) -> str | None:
    """Returns why nothing may compute in the format `value` instead of float32, or None."""
    return _refusal(facts) or _lack(value, facts)


def _refusal(facts: Facts) -> str | None:
    """Returns why only the user's precision is offered, or None."""
    if facts.numerics == "exact":
        return "numerics='exact' keeps the arithmetic; numerics='mixed' allows reduced precision"
    if torch.is_autocast_enabled(facts.device_type):
        return "autocast is already active around this call, so the user has already chosen a precision"
    for name, parameter in facts.model.named_parameters():
        if parameter.dtype != torch.float32:
            return f"parameter {name} is {parameter.dtype}, not float32: the user has already chosen a precision"
    return None


def _lack(value: str, facts: Facts) -> str | None:
    """Returns why `value` is not offered, or None."""
    if value == "fp16" and facts.update_fn:
        return f"{WHOLE}, and float16 needs a gradient scaler inside"
    if value not in facts.capabilities:
        return f"this {facts.device_type} device does not compute in {value}"
    if value == "tf32" and all(setting.fp32_precision == "tf32" for setting in TF32_SETTINGS):
        return "TF32 is already on, so fp32 runs in TF32 here"
    return None


@contextmanager
def _autocast(draft: Draft, value: str) -> Iterator[None]:
    """Runs the draft's forward passes under autocast. float16 training gets a gradient scaler."""
    by_user = draft.loss.update is not None
    if by_user and value == "fp16":
        raise unknown_value(
            KNOB, value, f"fp32, tf32 or bf16, since {WHOLE}, and float16 needs a gradient scaler in it"
        )
    # An update inside the context would leave casts of the weights before it in the cache.
    cached = False if by_user else None
    make = partial(torch.autocast, draft.device.type, dtype=AUTOCAST[value], cache_enabled=cached)
    try:
        make()
    except RuntimeError as error:
        raise SpaceError(
            f"{KNOB}={value} cannot be applied: {error} Expected a device with {value} autocast. Tune on this device."
        ) from error
    with Undo() as undo:
        undo.set(draft, "autocast", make)
        if value == "fp16" and draft.optimizer is not None and draft.scaler is None:
            undo.set(draft, "scaler", torch.amp.GradScaler(draft.device.type))
        yield


@contextmanager
def _tf32() -> Iterator[None]:
    """Runs float32 products, convolutions and recurrent layers on CUDA in TF32, in the whole process.

    Operations that inherit CUDA's common setting are changed through that setting: convolutions that were never set
    have a special state, which a write ends irreversibly (torch 2.11 and 2.13).

    Where the older `allow_tf32` disagrees with the newer settings, reading it raises an error (reference/reliability.md
    4.3), also in a compiler or in the user's code. So an older flag that says no is switched on too; one that could not
    be read before is left alone.
    """
    older = [(flag, settings) for flag, settings in OLDER_FLAGS if _says_no(flag)]
    with Undo() as undo:
        undo.callback(_set, CUDA_SETTING, _own_cuda_precision())
        _set(CUDA_SETTING, "tf32")
        for setting in TF32_SETTINGS:
            if setting.fp32_precision != "tf32":
                undo.set(setting, "fp32_precision", "tf32")
        for flag, settings in older:
            for setting in settings:
                undo.callback(_set, setting, "none" if _follows_cuda(setting) else "tf32")
            undo.callback(setattr, flag, "allow_tf32", False)  # it cannot be read now
            flag.allow_tf32 = True
        yield


def _says_no(flag: Any) -> bool:
    """Returns whether an older flag can be read and is off."""
    try:
        return flag.allow_tf32 is False
    except RuntimeError:  # the user has chosen by the newer interface
        return False


def _follows_cuda(setting: Any) -> bool:
    """Returns whether an operation inherits CUDA's common setting, which is "tf32" now and is changed briefly."""
    try:
        _set(CUDA_SETTING, "ieee")
        return bool(setting.fp32_precision == "ieee")
    finally:
        _set(CUDA_SETTING, "tf32")


def _set(setting: Any, value: str) -> None:
    setting.fp32_precision = value


def _own_cuda_precision() -> str:
    """Returns the value that was set for CUDA itself, "none" if CUDA inherits torch's setting for all devices.

    Writing back the effective value would pin it. To find out whether CUDA inherits, the setting for all devices is
    changed briefly.
    """
    value, general = str(CUDA_SETTING.fp32_precision), str(GENERAL_SETTING.fp32_precision)
    try:
        _set(GENERAL_SETTING, "ieee" if value == "tf32" else "tf32")
        return value if CUDA_SETTING.fp32_precision == value else "none"
    finally:
        _set(GENERAL_SETTING, general)
