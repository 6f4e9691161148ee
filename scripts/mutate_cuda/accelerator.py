"""Mutations of `autofit/devices/accelerator.py`."""

from scripts.mutate_cuda.mutation import Mutation

FILE = "autofit/devices/accelerator.py"


def in_accelerator(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, FILE, old, new, likely)


MUTATIONS = (
    in_accelerator(
        "shared memory: the machine's is not the limit",
        "return min(total, host_memory.capacity()) if self.is_integrated else total",
        "return total",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "shared memory: the driver's 'free' is believed",
        "available = host_memory.available() if self.is_integrated else None",
        "available = None",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "what this process holds is not available to it",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "min(free + outside, self.capacity_bytes())",
        "headroom",
    ),
    in_accelerator(
        "what lies outside the allocator is not available to this process",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "min(free + self._reserved_bytes(), self.capacity_bytes())",
        "device_checks",
        "headroom",
    ),
    in_accelerator(
        "more than the device has is available",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "free + self._reserved_bytes() + outside",
        "headroom",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "the user's own limit is not seen in what is available",
        "return found if fraction >= 1 else min(found, int(fraction * self.fraction_base()) + outside)",
        "return found",
        "headroom",
    ),
    in_accelerator(
        "shared memory: 'used' is taken to be the context",
        "        if self.is_integrated:\n            return CONTEXT_BYTES\n",
        "",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "the context is not counted",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return 0",
        "footprint",
    ),
    in_accelerator(
        "other processes' memory is counted as this one's",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return max(total - free - self._reserved_bytes(), 0)",
        "footprint",
        "processes",
    ),
    in_accelerator(
        "a driver that reports too much free makes the outside negative",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return min(total - free - self._reserved_bytes(), CONTEXT_BYTES)",
        "tune_faults",
    ),
    in_accelerator(
        "the device is not waited for", "torch.accelerator.synchronize(self.torch_device)", "return", "poison", "meter"
    ),
    in_accelerator("the cache is kept", "torch.accelerator.empty_cache()", "return", "out_of_memory", "leaks"),
    in_accelerator(
        "no out-of-memory is counted", 'ooms=int(stats.get("num_ooms", 0))', "ooms=0", "budget", "out_of_memory"
    ),
    in_accelerator("no retry is counted", 'retries=int(stats.get("num_alloc_retries", 0))', "retries=0", "budget"),
    in_accelerator(
        "a run before is metered too",
        "        torch.accelerator.reset_peak_memory_stats(self.torch_device)\n",
        "",
        "meter",
    ),
    in_accelerator(
        "memory is read before the work is done",
        "        yield reading\n        self.synchronize()\n",
        "        yield reading\n",
        "poison",
        "meter",
    ),
    in_accelerator(
        "what is reserved in the end stands for the peak",
        'reserved = int(stats.get("reserved_bytes.all.peak", 0))',
        'reserved = int(stats.get("reserved_bytes.all.current", 0))',
        "device_checks",
    ),
    in_accelerator(
        "what is live in the end stands for the peak",
        'allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0))',
        'allocated_bytes=int(stats.get("allocated_bytes.all.current", 0))',
        "meter",
    ),
    in_accelerator(
        "the footprint is what is reserved",
        "footprint = reserved + self.outside_bytes()",
        "footprint = reserved",
        "footprint",
    ),
    in_accelerator(
        "what is reserved is judged", "judged_bytes=footprint", "judged_bytes=reserved", "budget", "footprint"
    ),
    in_accelerator(
        "a plan's retries are not reported",
        "allocator_retries=after.retries - before.retries",
        "allocator_retries=0",
        "meter",
    ),
    in_accelerator(
        "retries of other runs are a plan's",
        "allocator_retries=after.retries - before.retries",
        "allocator_retries=after.retries",
        "meter",
    ),
    in_accelerator(
        "a plan's hidden out-of-memory is not reported",
        "swallowed_ooms=after.ooms - before.ooms",
        "swallowed_ooms=0",
        "meter",
    ),
    in_accelerator(
        "out-of-memory of other runs is a plan's",
        "swallowed_ooms=after.ooms - before.ooms",
        "swallowed_ooms=after.ooms",
        "meter",
    ),
    in_accelerator("nothing is limited", "self._set_fraction(min(wanted, before))", "pass", "budget"),
    in_accelerator(
        "a lower limit of the user's is lifted",
        "self._set_fraction(min(wanted, before))",
        "self._set_fraction(wanted)",
        "budget",
    ),
    in_accelerator(
        "the limit leaves no room for the context",
        "max(budget_bytes - self.outside_bytes(), 0) / self.fraction_base()",
        "budget_bytes / self.fraction_base()",
        "budget",
    ),
    in_accelerator(
        "a budget below the context is a negative limit",
        "max(budget_bytes - self.outside_bytes(), 0) / self.fraction_base()",
        "(budget_bytes - self.outside_bytes()) / self.fraction_base()",
        "budget",
    ),
    in_accelerator(
        "the limit stays",
        "            self._set_fraction(before)\n",
        "            pass\n",
        "budget",
    ),
    in_accelerator(
        "the user's limit comes back a byte lower",
        "if self._fraction() < before < 1:",
        "if False:",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator("a limit above the device is set", "min(fraction, 1.0)", "fraction", "budget"),
    in_accelerator(
        "live memory is not watched",
        'return int(self._stats().get("allocated_bytes.all.current", 0))',
        "return 0",
        "leaks",
    ),
)
