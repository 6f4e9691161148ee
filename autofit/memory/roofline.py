"""Speed: a plan's throughput at the device's ceilings, from what its step computes and moves. For order only.

A step takes at least as long as its products at the peak rate of their precision and its memory traffic at the peak
rate, added up: eager operators run one after another, and none overlaps its arithmetic with another's traffic (the
roofline of Williams, Waterman and Patterson, 2009, operator by operator, with every operator bound by one of the two).
Issuing the operators runs beside that on an accelerator, and is part of it on a host. Caches, fusion and how well a
kernel fits a shape are left out, so the seconds are wrong by a factor; what they are good for is which of two plans of
one workload to look at first.
"""

from autofit.core.plan import Plan
from autofit.core.work import Ceilings, StepWork, Work


def samples_per_s(plan: Plan, work: StepWork, ceilings: Ceilings) -> float | None:
    """Returns the throughput of a plan at the device's ceilings.

    Args:
        plan: its accumulation steps count.
        work: of this plan, as its trace counted it.
        ceilings: of the device.

    Returns:
        Samples per second; None where something is computed in a precision without a ceiling.
    """
    micro, update = (_seconds(part, ceilings) for part in (work.micro, work.update))
    if micro is None or update is None:
        return None
    step_s = plan.accumulation_steps * micro + update
    return plan.global_batch_size / step_s if step_s > 0 else None


def _seconds(work: Work, ceilings: Ceilings) -> float | None:
    if not work.flops.keys() <= ceilings.flops_per_s.keys():
        return None
    products_s = sum(flops / ceilings.flops_per_s[precision] for precision, flops in work.flops.items())
    device_s = products_s + work.traffic_bytes / ceilings.bytes_per_s
    issuing_s = work.operators * ceilings.operator_s
    return max(device_s, issuing_s) if ceilings.ahead else device_s + issuing_s
