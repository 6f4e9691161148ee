"""Briefing: what is known about a workload on a device before the first probe."""

from typing import Literal

from pydantic import Field

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.plan import KnobValue
from autofit.core.space import SpaceFacts
from autofit.core.strict import Strict
from autofit.core.work import Ceilings

Layout = Literal["replicated", "optimizer", "full", "hybrid", "tensor"]
"""What each rank has: everything; that, but a part of the optimizer state; a part of all; that, in rows; of layers."""
DOCTOR, LONG_PROOF = "autofit.doctor.in_tune:finding", "autofit.doctor.long_proof:lasted"
"""Functions that look at some steps of the answer, and that run it for long, by name: imported no sooner."""


class GateRecord(Strict):
    """The result of one numerical check of a technique.

    Attributes:
        name: technique that was checked: "accumulation", or a knob and its value such as "precision=bf16".
        passed: whether the technique keeps the gradient.
        reason: what was compared, what was found, and what is allowed.
    """

    name: str
    passed: bool
    reason: str


class Examiner(Strict):
    """What looks at a few steps of the answer, in the process that trains. It stands above the bench, so it has a name.

    Attributes:
        function: such as `DOCTOR`: "module:function", with the arguments of that one.
        more: the command or the call that says more, for the text.
        seconds: for how long it runs steps on batches as they come; 0 for a few steps on the worst batch.
    """

    function: str
    more: str = ""
    seconds: float = 0.0


class Briefing(Strict):
    """What is known about a workload on a device before the first probe.

    Attributes:
        space: the plans that may be proposed.
        environment: the environment of the measurements.
        budget: the memory budget with its arithmetic. The caller adds the limits on time and trials.
        enforced: whether the device itself refuses allocations beyond the budget.
        account: the allocator that an estimate of memory imitates; None if memory can only be measured.
        ceilings: peak speed of the device; None if unknown, or if plans are probed.
        caveats: notes for the user: an inferred loss, an incomplete scan.
        evaluates: whether the workload has an `eval_loader`, for which a plan can be searched too.
        sequence_length: second extent of the tensors of a batch, if they have one in common and plans are only traced.
    """

    space: SpaceFacts
    environment: Environment
    budget: Budget
    enforced: bool
    account: Account | None = None
    ceilings: Ceilings | None = None
    caveats: tuple[str, ...] = ()
    evaluates: bool = False
    sequence_length: int | None = None


class Options(Strict):
    """The options of `tune()` that also travel to a child process.

    Attributes:
        memory_budget: bytes, a text such as "20GiB", a fraction of the capacity, or None for the available memory less
            the headroom.
        numerics: "exact" admits strategies that keep the arithmetic, "mixed" adds tf32, bf16 and fp16 autocast, "any"
            adds strategies that change the result.
        pinned: value by knob; only plans with these values are searched. The baseline runs as it is, for comparison.
        without: names of strategies not to search.
        strategies: names of the strategies to search; None for all.
        seed: selects samples and seeds the checks and the searcher.
        enforce: whether the device limits the probing process to the budget while steps run.
        cold: whether each probe starts cold, with compiled code discarded, so that its warm-up can be measured.
        own_process: whether the process was started for the search: nobody else holds the model, which may be moved.
        resident_bytes: bytes that a training keeps on the device between two steps, if the workload is its evaluation.
            Those that the workload does not hold itself, such as the optimizer's state, are taken off the budget.
        ranks: number of ranks that train together, for an estimate.
        layout: the layout of these ranks; None for a comparison of all.
    """

    memory_budget: int | float | str | None = None
    numerics: Literal["exact", "mixed", "any"] = "mixed"
    strategies: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    pinned: dict[str, KnobValue] = {}
    seed: int = 0
    enforce: bool = False
    cold: bool = False
    own_process: bool = False
    resident_bytes: int = Field(default=0, ge=0)
    ranks: int = Field(default=1, ge=1)
    layout: Layout | None = None
