"""torchao's Adam and AdamW, with moments in 8 bits or in float32."""

import warnings
from functools import cache
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from autofit.strategies.compilation import missing_tool
from autofit.strategies.low_bit_adam import BLOCK, SMALLEST, LowBitAdam, State, Update
from autofit.strategies.optional_libraries import missing, quietly, unusable

MOMENTS = ("exp_avg", "exp_avg_sq")
SIGNED = MOMENTS[0]


class TorchaoAdam(LowBitAdam):
    """The update of torchao, in one compiled kernel per shape of a parameter.

    Parameters in bfloat16 are rounded stochastically. The state keeps torch's names, so that `state_dict` holds the
    8-bit moments, which the next training loads without a loss if it has prepared its step.

    Attributes:
        low_bit: whether moments are kept in 8 bits, and not in float32.
    """

    library: ClassVar[str] = "torchao"
    compiled: ClassVar[bool] = True
    rounds: ClassVar[bool] = True

    def __init__(self, *, low_bit: bool = True) -> None:
        self.low_bit = low_bit

    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        """Returns that torchao is missing, or that torch.compile generates no code here; None if it can be used."""
        if (reason := missing(self.library)) is not None:
            return reason
        if capabilities is not None and "compiled code" not in capabilities:
            return f"torchao compiles its update, and torch.compile generates no code for this {device_type} device"
        if tool := missing_tool():
            return tool
        try:
            _library()
        except (ImportError, AttributeError, OSError) as error:
            return unusable(self.library, error)
        return None

    def refusal(self, optimizer: Optimizer) -> str | None:
        """Returns that a scheduler changes beta1, with which each step would be compiled anew, or None."""
        if any("max_momentum" in group or "max_betas" in group for group in optimizer.param_groups):
            return "a scheduler changes beta1 in every step, and torchao compiles its update anew for each value"
        return None

    def quantizes(self, parameter: torch.Tensor) -> bool:
        """Returns whether torchao keeps the moments of a parameter in 8 bits: not if it is small or has no blocks."""
        return self.low_bit and parameter.numel() >= SMALLEST and parameter.numel() % BLOCK == 0

    def is_packed(self, parameter: torch.Tensor, state: State) -> bool:
        """Returns whether the moments are quantized, where the library quantizes them."""
        return not self.quantizes(parameter) or isinstance(state[SIGNED], _library().OptimState8bit)

    def packed(self, parameter: torch.Tensor, state: State) -> State:
        """Returns a state with quantized moments."""
        kind = _library().OptimState8bit

        def quantized(name: str, value: torch.Tensor) -> torch.Tensor:
            made = kind.zeros(parameter.shape, name == SIGNED, BLOCK, parameter.device, dtype=parameter.dtype)
            found: torch.Tensor = made.copy_(value.float())
            return found

        return {name: quantized(name, value) if name in MOMENTS else value for name, value in state.items()}

    def unpacked(self, parameter: torch.Tensor, state: State) -> State:
        """Returns a state with float32 moments."""
        kind = _library().OptimState8bit
        return {name: value.dequantize() if isinstance(value, kind) else value for name, value in state.items()}

    def update(self) -> Update:
        """Returns the update, made by an optimizer of torchao that has the user's state and one of the user's groups.

        torchao expects a learning rate in a tensor, since a number would be compiled into the kernel.
        """
        kind: Any = _library().AdamW8bit if self.low_bit else _library()._AdamW
        made = kind([torch.zeros(1)], bf16_stochastic_round=True)

        def update(group: dict[str, Any], optimizer: Optimizer) -> None:
            self._begin(group, optimizer)
            rate = group["lr"]
            tensor = rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float32)
            made.is_adamw = bool(group["decoupled_weight_decay"])
            made.state, made.param_groups = optimizer.state, [{**group, "lr": tensor}]
            with warnings.catch_warnings():
                # torchao's states have no hash for the cache of torch.compile (torch 2.13, torchao 0.18).
                warnings.filterwarnings("ignore", message=".*_stable_hash_for_caching")
                warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 warns of its own imports
                made.step()

        return update

    def _begin(self, group: dict[str, Any], optimizer: Optimizer) -> None:
        """Makes the float32 moments of bfloat16 parameters: torchao makes them in bfloat16, where they hardly decay."""
        for parameter in group["params"]:
            if parameter.grad is None or parameter.dtype != torch.bfloat16 or optimizer.state.get(parameter):
                continue
            if not self.quantizes(parameter):
                moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}


@cache
def _library() -> Any:
    """Returns the module of torchao's optimizers, imported without its notes on kernels for other devices."""
    with quietly():
        from torchao import optim  # noqa: PLC0415  # only if it is used
        from torchao.optim.subclass_8bit import OptimState8bit  # noqa: PLC0415
    optim.OptimState8bit = OptimState8bit
    return optim
