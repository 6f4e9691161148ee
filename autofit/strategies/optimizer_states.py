"""Optimizer states: the moments of Adam in 8 bits, by a library that is installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.units import format_bytes
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.bf16_parameters import rounds_weights
from autofit.strategies.bitsandbytes_adam import BitsandbytesAdam
from autofit.strategies.low_bit_adam import LowBitAdam, refusal, updated_by
from autofit.strategies.optimizer_implementation import switches
from autofit.strategies.optimizer_in_backward import updates_in_backward
from autofit.strategies.torch_optimizers import grouped_parameters
from autofit.strategies.torchao_adam import TorchaoAdam
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

KNOB = "optimizer_states"
LIBRARIES: dict[str, LowBitAdam] = {"torchao-8bit": TorchaoAdam(), "bitsandbytes-8bit": BitsandbytesAdam()}
SMALLEST_SHARE = 0.05
"""Minimum memory that is freed, as a share of the memory budget. The next larger micro batch rarely needs less."""
FREED_BYTES = 6
"""Bytes that each element of a parameter needs less: two moments of one byte instead of four."""
LEAST_WARM_UP_S = 3.0
"""Least plausible seconds in which the update is compiled; see `autofit.strategies.compilation`."""


class OptimizerStates(Strategy):
    """The moments of Adam or AdamW in 8 bits, in blocks that share a scale (Dettmers et al., arXiv:2110.02861).

    A library makes the updates. The user's optimizer stays the object in use, with its groups. Moments that exist
    already are quantized, and those of small parameters stay float32. While the step is open, the optimizer's
    `state_dict` holds the library's states; closing the step turns them into float32 moments of torch again, which
    need eight bytes for each element of a parameter.
    """

    name = "optimizer_states"
    about = "keeps the moments of Adam in 8 bits"
    cost = "digits of the moments, a slower update, and seconds of compiling with torchao"
    effect = "changes the result"
    phase = Phase.OPTIMIZER
    owns = (KNOB,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the libraries that can make the updates of this optimizer on this device."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        if facts.numerics != "any":
            return self.refuse(
                f"numerics={facts.numerics!r} keeps the optimizer's states; numerics='any' allows 8-bit states"
            )
        reason = refusal(facts.optimizer, facts.model)
        if reason is not None:
            return self.refuse(reason)
        missing = {value: why for value in LIBRARIES if (why := _lack(value, facts, facts.optimizer)) is not None}
        refused = tuple(Refusal(name=f"{KNOB}={value}", reason=why) for value, why in missing.items())
        if len(missing) == len(LIBRARIES):
            return Offer(refused=refused)
        found = [value for value in LIBRARIES if value not in missing]
        warm_up_s = (LEAST_WARM_UP_S if LIBRARIES[value].compiled else 0.0 for value in found)
        knob = Knob(
            name=KNOB,
            values=("default", *found),
            default="default",
            about="how the moments of the optimizer are kept",
            expected=(1.0, *(0.95 for _ in found)),
            growth=(1.0, *(1.0 for _ in found)),  # states do not grow with the batch
            warm_up_s=(0.0, *warm_up_s),
            frees_bytes=(0, *(_freed_bytes(LIBRARIES[value], facts.optimizer) for value in found)),
        )
        return Offer((knob,), refused)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Has a library make the updates, until the context is left.

        Raises:
            SpaceError: the library is missing, or cannot make the updates of this optimizer.
        """
        value = plan.values.get(KNOB, "default")
        if value == "default":
            yield
            return
        library = LIBRARIES.get(value) if isinstance(value, str) else None
        if library is None:
            raise unknown_value(KNOB, value, f"default, {', '.join(LIBRARIES)}")
        optimizer = draft.optimizer
        reason = "inference has no updates" if optimizer is None else _refusal_of_draft(library, optimizer, draft)
        if optimizer is None or reason is not None:
            raise SpaceError(
                f"{KNOB}={value} cannot be applied: {reason}; expected an Adam or AdamW of torch.optim, and the "
                "library. Tune again with this optimizer."
            )
        with Undo() as undo:
            undo.enter_context(updated_by(library, optimizer, draft))
            undo.callback(setattr, draft, "compiled", draft.compiled)
            draft.compiled = draft.compiled or library.compiled
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns which other way to update `plan` has beside that of a library, or None."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        if switches(plan):
            return "the update is either one of torch.optim's implementations or that of a library for 8-bit states"
        if rounds_weights(plan) and not LIBRARIES[str(plan.values[KNOB])].rounds:
            return "this library does not round bfloat16 weights stochastically"
        return "a library updates 8-bit states after the backward pass" if updates_in_backward(plan) else None

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that a library makes the updates, if the plan has 8-bit states."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        return "the update of 8-bit states has kernels of its own; a probe measures their memory"


def _refusal_of_draft(library: LowBitAdam, optimizer: Optimizer, draft: Draft) -> str | None:
    unusual = refusal(optimizer, draft.model) or library.refusal(optimizer)
    return unusual or library.lack(draft.device.type, None)


def _lack(value: str, facts: Facts, optimizer: Optimizer) -> str | None:
    """Returns why a library is not offered, or None."""
    library = LIBRARIES[value]
    reason = library.refusal(optimizer) or library.lack(facts.device_type, facts.capabilities)
    return reason or _lack_of_effect(library, facts.memory_budget_bytes, optimizer)


def _freed_bytes(library: LowBitAdam, optimizer: Optimizer) -> int:
    """Returns the bytes that 8-bit states need less than float32 states."""
    sizes = (p.numel() for _, p in grouped_parameters(optimizer) if p.requires_grad and library.quantizes(p))
    return FREED_BYTES * sum(sizes)


def _lack_of_effect(library: LowBitAdam, budget: int | None, optimizer: Optimizer) -> str | None:
    """Returns why smaller states cannot matter, or None."""
    freed = _freed_bytes(library, optimizer)
    if not freed:
        return f"{library.library} quantizes no states here: it leaves those of small parameters in float32"
    if budget is not None and freed < SMALLEST_SHARE * budget:
        return (
            f"8-bit states free {format_bytes(freed)}, less than {SMALLEST_SHARE:.0%} of the memory budget of "
            f"{format_bytes(budget)}: they hardly change what fits"
        )
    return None
