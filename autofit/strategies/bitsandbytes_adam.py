"""bitsandbytes' Adam and AdamW with moments in 8 bits, which need no compiler."""

from functools import cache
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from autofit.strategies.low_bit_adam import BLOCK, SMALLEST, LowBitAdam, State, Update
from autofit.strategies.optional_libraries import missing, quietly, unusable

MOMENTS = {"state1": "exp_avg", "state2": "exp_avg_sq"}
"""Names of the moments in bitsandbytes and in torch."""
MAPS = {"state1": "dynamic", "state2": "udynamic"}
"""Names of the 256 values that the codes of a moment stand for."""
OPERATOR = "bitsandbytes::optimizer_update_8bit_blockwise"


class BitsandbytesAdam(LowBitAdam):
    """The update of bitsandbytes, in its own kernels.

    The state has bitsandbytes' names. An optimizer of torch that loads it turns its codes into float32 numbers; the
    next step under this update turns them back.
    """

    library: ClassVar[str] = "bitsandbytes"

    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        """Returns that bitsandbytes is missing or has no kernel for the device; None if it can be used."""
        if (reason := missing(self.library)) is not None:
            return reason
        try:
            _library()
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            return unusable(self.library, error)
        if not torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, device_type.upper()):
            return f"bitsandbytes has no 8-bit update for this {device_type} device"
        return None

    def refusal(self, optimizer: Optimizer) -> str | None:
        """Returns that the weight decay is part of the gradient, or None."""
        for group in optimizer.param_groups:
            if group["weight_decay"] and not group["decoupled_weight_decay"]:
                return "bitsandbytes decays weights as AdamW does, and not through the gradient as this optimizer"
        return None

    def quantizes(self, parameter: torch.Tensor) -> bool:
        """Returns whether bitsandbytes keeps the moments of a parameter in 8 bits: not if it is small."""
        return parameter.numel() >= SMALLEST

    def is_packed(self, parameter: torch.Tensor, state: State) -> bool:
        """Returns whether the state has the names of bitsandbytes, and codes in bytes."""
        return "state1" in state and (not self.quantizes(parameter) or state["state1"].dtype is torch.uint8)

    def packed(self, parameter: torch.Tensor, state: State) -> State:
        """Returns a state with the names of bitsandbytes, quantized if the parameter is large enough."""
        if "state1" in state:  # loaded by an optimizer of torch
            return {**state, **{name: state[name].to(torch.uint8) for name in MOMENTS}}
        made: State = {"step": int(state["step"])}
        for number, (name, of_torch) in enumerate(MOMENTS.items(), start=1):
            if not self.quantizes(parameter):
                made[name] = state[of_torch]
                continue
            values = _maps()[MAPS[name]].to(parameter.device)
            codes, scales = torch.ops.bitsandbytes.quantize_blockwise(state[of_torch], values, BLOCK)
            made.update({name: codes, f"qmap{number}": values, f"absmax{number}": scales})
        return made

    def unpacked(self, parameter: torch.Tensor, state: State) -> State:
        """Returns a state with torch's names, in float32."""
        made: State = {"step": torch.tensor(float(state["step"]))}
        for number, (name, of_torch) in enumerate(MOMENTS.items(), start=1):
            made[of_torch] = state[name]
            if self.quantizes(parameter):
                scales, values = state[f"absmax{number}"], state[f"qmap{number}"]
                arguments = (state[name], scales, values, BLOCK, torch.float32)
                made[of_torch] = torch.ops.bitsandbytes.dequantize_blockwise(*arguments)
        return made

    def update(self) -> Update:
        """Returns the update, made by an optimizer of bitsandbytes that has the user's state and groups."""
        made: Any = _library().optim.AdamW8bit([torch.zeros(1)])

        def update(group: dict[str, Any], optimizer: Optimizer) -> None:
            made.state, made.param_groups = optimizer.state, [{**group, "lr": float(group["lr"])}]
            made.step()

        return update


@cache
def _library() -> Any:
    """Returns bitsandbytes, imported without its notes on kernels for other devices."""
    with quietly():
        import bitsandbytes  # noqa: PLC0415  # only if it is used
    return bitsandbytes


@cache
def _maps() -> dict[str, torch.Tensor]:
    create = _library().functional.create_dynamic_map
    return {"dynamic": create(signed=True), "udynamic": create(signed=False)}
