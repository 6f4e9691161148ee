"""Work: arithmetic and memory traffic of a training step, and the peak rates of a device."""

from autofit.core.strict import Strict


class Work(Strict):
    """The work of the operators in a part of a step.

    Attributes:
        flops: floating-point operations of products (matrix products, convolutions, attention) by precision. A
            multiply-add counts as two.
        traffic_bytes: operands read and results written by each operator, without fusion and caching.
        operators: number of operators that compute or copy.
    """

    flops: dict[str, int] = {}
    traffic_bytes: int = 0
    operators: int = 0


class StepWork(Strict):
    """The work of a training step.

    Attributes:
        micro: forward and backward pass of one micro batch, including its transfer.
        update: work done once per optimizer step: clipping and the update.
    """

    micro: Work
    update: Work


class Ceilings(Strict):
    """Peak rates of a device.

    Attributes:
        flops_per_s: peak rate of products by precision.
        bytes_per_s: peak memory bandwidth.
        operator_s: seconds to issue one operator.
        ahead: whether operators are issued while earlier ones still run, so that the longer of the two times applies.
    """

    flops_per_s: dict[str, float]
    bytes_per_s: float
    operator_s: float
    ahead: bool
