"""Work: arithmetic and memory traffic of a training step, and how fast a device does either at best."""

from typing import Self

from pydantic import BaseModel, ConfigDict


class Work(BaseModel):
    """What the operators of a part of a step do.

    Attributes:
        flops: floating-point operations of products (matrix products, convolutions, attention) by precision; a
            multiplication with its addition counts as two.
        traffic_bytes: operands read and results written, each operator on its own: nothing is fused, nothing cached.
        operators: how many operators ran that compute or copy anything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flops: dict[str, int] = {}
    traffic_bytes: int = 0
    operators: int = 0


class StepWork(BaseModel):
    """What a training step does.

    Attributes:
        micro: forward and backward pass of one micro batch, its transfer included.
        update: what an optimizer step does once: clipping, the optimizer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro: Work
    update: Work

    def in_precision(self, before: str, after: str) -> Self:
        """Returns the same work with the products of one precision in another."""
        parts = (self.micro, self.update)
        renamed = ({after if name == before else name: n for name, n in part.flops.items()} for part in parts)
        micro, update = (part.model_copy(update={"flops": n}) for part, n in zip(parts, renamed, strict=True))
        return self.model_copy(update={"micro": micro, "update": update})


class Ceilings(BaseModel):
    """How fast a device is at best.

    Attributes:
        flops_per_s: rate of products by precision.
        bytes_per_s: rate at which its memory is read or written.
        operator_s: seconds that it takes to issue one operator.
        ahead: whether operators are issued while earlier ones still run, so that only the longer of the two counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flops_per_s: dict[str, float]
    bytes_per_s: float
    operator_s: float
    ahead: bool
