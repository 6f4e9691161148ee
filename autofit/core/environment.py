"""Environment: where a measurement was made, which decides what it may be compared with."""

import os

from autofit.core.strict import Strict

UPDATE, UPDATE_FN = "update", "update_fn"
"""Name and value of the setting of a training whose whole step the user's `update_fn` does. Absent otherwise."""
RANKS, ROWS = "ranks", "rows"
"""Names of the settings with the number of ranks, and of the rows in which they can be put. Absent if it was one."""
WEIGHING, TRAINER = "weighing", "trainer"
"""Settings of an answer's environment: how micro batches are weighted, absent if by their samples; the library
whose trainer was tuned, absent if none was. They change neither speed nor memory, so they make no other environment."""


LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and whatever starts ranks as it does, tells each rank, by variable."""


def launched_ranks() -> tuple[int, int]:
    """Returns the number of this rank and how many a launcher has started; (0, 1) if none has."""
    found = [os.environ.get(name, "") for name in LAUNCHED]
    number, count = found[:2]
    return (int(number), int(count)) if all(found) and number.isdecimal() and count.isdecimal() else (0, 1)


class Environment(Strict):
    """Device, library versions and workload signature.

    Attributes:
        workload: short digest of the model's structure, the batch's structure and the loss.
        device_type: "cpu", "cuda", ...
        device_name: the manufacturer's name of the device.
        capacity_bytes: memory of the device.
        threads: number of intra-op threads of torch, which determines speed on CPU.
        versions: version by name: python, torch, autofit, driver, ...
        settings: other settings that affect measurements: the optimizer, the mode, allocator settings.
    """

    workload: str
    device_type: str
    device_name: str
    capacity_bytes: int
    threads: int | None = None
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}

    @property
    def is_host(self) -> bool:
        """Whether the device is the CPU, whose memory is the machine's main memory."""
        return self.device_type == "cpu"

    @property
    def ranks(self) -> int:
        """Number of ranks that trained together."""
        found = self.settings.get(RANKS, "1")
        return int(found) if found.isdecimal() else 1

    @property
    def devices(self) -> str:
        """The device's name, with the number of devices if several ranks train together."""
        return self.device_name if self.ranks == 1 else f"{self.ranks} x {self.device_name}"

    @property
    def is_inference(self) -> bool:
        """Whether forward passes alone were measured."""
        return self.settings.get("mode") == "inference"

    def differences(self, other: "Environment") -> list[str]:
        """Returns the differences that make measurements incomparable, as "name: value, was other value"."""
        now, before = self._facts(), other._facts()
        return [
            f"{name}: {now.get(name, 'absent')}, was {before.get(name, 'absent')}"
            for name in sorted(now.keys() | before.keys())
            if now.get(name) != before.get(name)
        ]

    def comparable(self, other: "Environment") -> bool:
        """Returns whether measurements made in the two environments may be compared."""
        return not self.differences(other)

    def _facts(self) -> dict[str, str]:
        facts = {"workload": self.workload, "device": f"{self.device_type} {self.device_name}"}
        # The memory of a virtual machine may be reported with a small difference after a reboot.
        facts["capacity"] = f"{self.capacity_bytes / 2**30:.0f} GiB"
        facts["threads"] = str(self.threads)
        return facts | self.versions | {k: v for k, v in self.settings.items() if k not in (WEIGHING, TRAINER)}
