"""Benches on the CPU with plenty of memory, for the tests of probing."""

from typing import Any

from autofit import devices
from autofit.core.briefing import Options
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload

CPU: Any = type(devices.choose("cpu"))


PLENTY = Options(memory_budget="1GiB")


def bench_of(workload: Workload, device: Device | None = None, **options: Any) -> LocalBench:
    return LocalBench(workload, device or CPU(), PLENTY.model_copy(update=options))
