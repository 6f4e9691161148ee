"""Intel GPUs, through `torch.accelerator`. Written from torch's sources and never run on hardware; a caveat says so."""

import torch

from autofit.devices.accelerator import Accelerator
from autofit.devices.base import Capability


class Xpu(Accelerator):
    """One Intel GPU. Untested on hardware."""

    type = "xpu"

    @classmethod
    def is_available(cls) -> bool:
        """Returns whether torch sees a device."""
        return torch.xpu.is_available()

    @classmethod
    def count(cls) -> int:
        """Returns how many devices torch sees."""
        return int(torch.xpu.device_count())

    def name(self) -> str:
        """Returns the driver's name of the device."""
        return str(torch.xpu.get_device_name(self.torch_device))

    def driver_info(self) -> tuple[int, int]:
        """Returns free and total memory as the driver reports them.

        Integrated chips, and all chips under WSL, do not report free memory (pytorch #159728, #194576). It is then
        assumed that no other process uses the device.
        """
        total = self.fraction_base()
        try:
            return int(torch.accelerator.get_memory_info(self.torch_device)[0]), total
        except RuntimeError:
            return max(total - self._reserved_bytes(), 0), total

    @property
    def is_integrated(self) -> bool:
        """Whether the chip computes in the machine's main memory."""
        return bool(getattr(torch.xpu.get_device_properties(self.torch_device), "is_integrated_gpu", False))

    def fraction_base(self) -> int:
        """Returns the total memory of the device."""
        return int(torch.xpu.get_device_properties(self.torch_device).total_memory)

    def caveats(self) -> tuple[str, ...]:
        """Returns what is unknown about this back end."""
        return (
            "the xpu back end has never been run on hardware: check the memory of a longer training run yourself",
            "running out of memory can end the process or lose the device on XPU: prefer the command line, which "
            "probes in a child process",
        )

    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of torch's kernels, without TF32, which is set differently than on CUDA."""
        found = {Capability.FP16, Capability.CHANNELS_LAST, Capability.FOREACH, Capability.FUSED}
        if torch.xpu.get_device_properties(self.torch_device).has_bfloat16_conversions:
            found.add(Capability.BF16)
        if not self.is_integrated:
            found.add(Capability.OWN_MEMORY)
        return frozenset(found)

    def versions(self) -> dict[str, str]:
        """Returns the versions of the driver and of the compiler runtime."""
        driver = str(torch.xpu.get_device_properties(self.torch_device).driver_version)
        return {"xpu": str(torch.version.xpu or "unknown"), "driver": driver}
