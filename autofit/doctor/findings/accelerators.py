"""What costs memory or time on accelerators alone."""

from collections.abc import Iterator

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector, at_peak, is_nothing
from autofit.doctor.observation import Observation
from autofit.memory.peak import memory_use

EXPANDABLE = "expandable_segments:True"
"""Option of the caching allocator with which segments grow, so that parts of them are not left unused."""
HOST = "the CPU has no caching allocator"
LEAST_FP32 = 0.5
"""Smallest share of products in float32 that is shown."""


class Fragmentation(Detector):
    """Memory that the caching allocator reserves beyond live tensors, and would not with growing segments."""

    id = "fragmentation"
    about = "memory that the caching allocator reserves and cannot use"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, on a host."""
        return HOST if observation.account.allocator == "host" else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding, by replaying all steps with another option of the allocator."""
        account, trace = observation.account, observation.views.whole
        if EXPANDABLE in account.settings:
            return
        now = memory_use(trace, account).reserved_bytes or 0
        settings = ",".join(part for part in (account.settings, EXPANDABLE) if part)
        then = memory_use(trace, account.model_copy(update={"settings": settings})).reserved_bytes or 0
        if is_nothing(observation, now - then):
            return
        yield Finding(
            id=self.id,
            what=(
                f"the allocator reserves {format_bytes(now)} for tensors that peak at "
                f"{format_bytes(observation.peak_bytes)}"
            ),
            remedy=f"start the training with PYTORCH_ALLOC_CONF={EXPANDABLE}",
            **at_peak(observation, now - then),
        )


class Fp32Products(Detector):
    """Matrix products and convolutions in float32, for which tensor cores are not used."""

    id = "fp32-products"
    about = "products in float32, which tensor cores do not compute"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, on a host."""
        return "tensor cores are looked for on accelerators only" if observation.account.allocator == "host" else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for the products of a step."""
        flops = observation.watch.work[observation.step - 1].flops
        share = flops.get("fp32", 0) / max(sum(flops.values()), 1)
        if share < LEAST_FP32:
            return
        yield Finding(
            id=self.id,
            what=f"{share:.0%} of the arithmetic of products is in float32, which tensor cores do not compute",
            remedy='run the forward pass under torch.autocast, or call torch.set_float32_matmul_precision("high")',
            evidence=("The gain was not measured: autofit tune measures it, and checks the gradient.",),
        )
