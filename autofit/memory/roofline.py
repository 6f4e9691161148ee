"""Roofline: a plan's throughput at the device's peak rates, from the work and traffic of its step. For ranking only.

The minimum time of a step is the time of its matrix products at the peak rate of their precision plus the time of its
memory traffic at the peak rate. The two are added because eager operators run one after another and do not overlap
their arithmetic with another's traffic (the roofline of Williams, Waterman and Patterson, 2009, operator by operator,
with every operator bound by one of the two). Issuing operators overlaps with this on an accelerator and adds to it on a
host. Caches, fusion and kernel efficiency for a shape are not modelled, so the seconds are off by a factor. Use them
only to decide which of two plans of one workload to try first.
"""

from autofit.core.plan import Plan
from autofit.core.work import Ceilings, StepWork, Work


def samples_per_s(plan: Plan, work: StepWork, ceilings: Ceilings) -> float | None:
    """Returns the throughput of a plan at the device's ceilings.

    Args:
        plan: the plan. Its accumulation steps and global batch size are used.
        work: the work of a step of this plan, as counted in its trace.
        ceilings: peak rates of the device.

    Returns:
        Samples per second. None if a precision has no peak rate.
    """
    micro, update = (_seconds(part, ceilings) for part in (work.micro, work.update))
    if micro is None or update is None:
        return None
    step_s = plan.accumulation_steps * micro + update
    return plan.global_batch_size / step_s if step_s > 0 else None


def in_precision(work: StepWork, before: str, after: str) -> StepWork:
    """Returns the same work with the products of precision `before` in precision `after`."""
    parts = (work.micro, work.update)
    renamed = ({after if name == before else name: n for name, n in part.flops.items()} for part in parts)
    micro, update = (part.model_copy(update={"flops": n}) for part, n in zip(parts, renamed, strict=True))
    return work.model_copy(update={"micro": micro, "update": update})


def _seconds(work: Work, ceilings: Ceilings) -> float | None:
    if not work.flops.keys() <= ceilings.flops_per_s.keys():
        return None
    products_s = sum(flops / ceilings.flops_per_s[precision] for precision, flops in work.flops.items())
    device_s = products_s + work.traffic_bytes / ceilings.bytes_per_s
    issuing_s = work.operators * ceilings.operator_s
    return max(device_s, issuing_s) if ceilings.ahead else device_s + issuing_s
