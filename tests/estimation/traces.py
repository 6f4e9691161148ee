"""Traces of a model whose peak is known in advance, for the tests of estimates."""

from collections.abc import Callable

from autofit.core.account import Account
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts, StrategyRecord
from autofit.core.work import Ceilings, StepWork, Work
from autofit.memory.trace import Kind, Mark, Tensors, Trace

MIB = 2**20


BLOCKS, BLOCK, KEPT, WEIGHTS = 4, 10 * MIB, 2 * MIB, 100 * MIB


CHECKPOINTED = Knob(
    name="checkpointed_blocks",
    values=(0, 1, 2, 3, 4),
    default=0,
    trades_memory=Trade(technique="checkpointing", counted="blocks to checkpoint", between=True),
)


PRECISION = Knob(name="precision", values=("fp32", "tf32", "bf16"), default="fp32", same_memory=("tf32",))


def briefing(budget: int, **changes: object) -> Briefing:
    knobs = changes.pop("knobs", (PRECISION, CHECKPOINTED))
    own = {"micro_batch_size": 8, "accumulation_steps": 1, **{knob.name: knob.default for knob in knobs}}  # type: ignore[attr-defined]  # a tuple of knobs
    precision = StrategyRecord(name="precision", knobs=("precision",), about="", cost="", effect="rounding")
    facts = {
        "strategies": (precision,),
        "knobs": knobs,
        "sizes": (1, 2, 4, 8, 16),
        "global_batch_size": None,
        "baseline": Plan(values=own),
    }
    return Briefing(
        space=SpaceFacts.model_validate(facts | changes),
        environment=Environment(workload="a-b", device_type="cpu", device_name="Test", capacity_bytes=2**40),
        budget=Budget(memory_bytes=budget),
        enforced=False,
        account=Account(allocator="host"),
        ceilings=Ceilings(flops_per_s={"fp32": 1e13, "tf32": 8e13}, bytes_per_s=1e12, operator_s=1e-6, ahead=True),
        caveats=("a caveat of the bench",),
    )


def trace_of(plan: Plan) -> Trace:
    """Returns one step: parameters, state, then activations, then gradients in their place."""
    activations = peak_of(plan) - 3 * WEIGHTS
    kinds = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.ACTIVATION, Kind.GRADIENT)
    return Trace(
        micro_batch_size=plan.micro_batch_size,
        tensors=Tensors(sizes=(WEIGHTS, 2 * WEIGHTS, activations, WEIGHTS), kinds=kinds, origins=(-1, -1, 1, -1)),
        events=(0, 1, 2, ~2, 3, ~3),
        marks=(
            Mark(name="step 1 forward", event=2),
            Mark(name="step 1 backward", event=3),
            Mark(name="step 1 optimizer", event=5),
            Mark(name="end", event=6),
        ),
        modules=("", "blocks.0"),
        notes=("a note of the trace",),
        work=StepWork(micro=Work(flops={"fp32": 10**12 * plan.micro_batch_size}), update=Work()),
    )


def peak_of(plan: Plan) -> int:
    """Returns the live tensors of `trace_of` at their peak: while the backward pass begins."""
    values = plan.values
    kept = int(values.get("checkpointed_blocks", 0))
    samples = plan.micro_batch_size * ((BLOCKS - kept) * BLOCK + kept * KEPT)
    return 3 * WEIGHTS + (samples // 2 if values.get("precision") == "bf16" else samples)


def enlarged(times: int, more: Callable[[Plan], int]) -> Callable[[Plan], Trace]:
    """Returns a tracer whose activations are so many times as large, and more."""

    def trace(plan: Plan) -> Trace:
        found = trace_of(plan)
        first, second, activations, last = found.tensors.sizes
        sizes = (first, second, times * activations + more(plan), last)
        return found.model_copy(update={"tensors": found.tensors.model_copy(update={"sizes": sizes})})

    return trace
