"""Estimation: what a workload's training will need on a device, without having run there. What `estimate` returns."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimation_text import draw
from autofit.core.foreseen import Breakdown, Foreseen, Row
from autofit.core.space import Refusal


class Estimation(BaseModel):
    """What a workload's training will need on a device that it has not run on.

    Attributes:
        schema_name: the record's schema and version.
        target: what was estimated: a factory, or "" for objects that were passed in.
        environment: the device, the versions that the traces depend on, the workload's signature.
        budget: the limit on memory, with its arithmetic.
        account: how the device keeps account of memory; where its figure for what lies outside the allocator is from
            is among the caveats.
        ran: micro batches of which short steps were run, since the step cannot be traced; () where nothing was run.
        own: the user's own plan.
        breakdown: what makes up its peak.
        rows: by precision.
        shortfall: why nothing fits, by how much, and what would help; "" where something fits.
        caveats: what a person should know before relying on it.
        refused: precisions and checkpointing that are left out, with the reason.
        duration_s: seconds that it took.
        created: UTC time in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_name: Literal["autofit.estimate/1"] = Field(default="autofit.estimate/1", alias="schema")
    target: str = ""
    environment: Environment
    budget: Budget
    account: Account
    ran: tuple[int, ...] = ()
    own: Foreseen
    breakdown: Breakdown
    rows: tuple[Row, ...]
    shortfall: str = ""
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    duration_s: float = 0.0
    created: str = ""

    def __str__(self) -> str:
        return draw(self)
