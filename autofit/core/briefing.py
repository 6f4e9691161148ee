"""Briefing: what is known of a workload on a device before the first probe."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.space import SpaceFacts
from autofit.core.work import Ceilings


class Briefing(BaseModel):
    """What is known of a workload on a device before the first probe.

    Attributes:
        space: the plans that may be proposed.
        environment: where measurements are made.
        budget: the memory budget with its arithmetic; time and trials are the caller's.
        enforced: whether the device itself refuses what is over the budget.
        account: what a prediction of memory has to imitate; None where memory can only be measured.
        ceilings: how fast the device is at best; None where that is not known, or where plans are probed.
        caveats: what a person should know: an inferred loss, a scan that was not complete, a gate that failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: SpaceFacts
    environment: Environment
    budget: Budget
    enforced: bool
    account: Account | None = None
    ceilings: Ceilings | None = None
    caveats: tuple[str, ...] = ()


class Options(BaseModel):
    """What the caller of `tune()` asks of a search, as data: it also travels to a worker.

    Attributes:
        memory_budget: bytes, a text such as "20GiB", a fraction of the capacity, or None for what is available less
            the headroom.
        numerics: "exact" admits strategies that keep the arithmetic, "mixed" adds tf32, bf16 and fp16 autocast, "any"
            adds what changes the result.
        strategies: names of the strategies to search; None for all.
        seed: chooses samples and seeds the gates and the searcher.
        enforce: whether the device limits the probing process to the budget while steps run.
        cold: whether each probe begins as cold as a training, what torch.compile has made forgotten: plans are then
            charged for their start.
        may_move: whether the model may be moved to the device, because it is not the user's own object.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_budget: int | float | str | None = None
    numerics: Literal["exact", "mixed", "any"] = "mixed"
    strategies: tuple[str, ...] | None = None
    seed: int = 0
    enforce: bool = False
    cold: bool = False
    may_move: bool = False
