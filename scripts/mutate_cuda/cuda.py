"""Mutations of `autofit/devices/cuda.py`."""

from scripts.mutate_cuda.mutation import Mutation

FILE = "autofit/devices/cuda.py"


def in_cuda(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, FILE, old, new, likely)


MUTATIONS = (
    in_cuda(
        "a chip in main memory is not recognised",
        'return bool(getattr(torch.cuda.get_device_properties(self.torch_device), "is_integrated", False))',
        "return False",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "the limit is a fraction of what the driver reports",
        "return int(torch.cuda.get_device_properties(self.torch_device).total_memory)",
        "return self.driver_info()[1]",
        "device_checks",
    ),
    in_cuda(
        "memory pools: the limit is a fraction of what the chip was built with",
        "        if torch.cuda.get_allocator_backend() == ASYNC:\n            return int(",
        "        if False:\n            return int(",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is not asked",
        "reported = self._nvml.used_bytes() if self._nvml is not None else None",
        "reported = None",
        "footprint",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it says less than is reserved",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it says more than is used",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if reserved <= used and (named or used - reserved <= CONTEXT_BYTES):",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it names nobody",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if reserved <= used <= total - free:",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "the last reading of NVML is forgotten when NVML fails",
        "        if self._nvml_outside is not None:\n            return self._nvml_outside\n",
        "        if reported is not None and self._nvml_outside is not None:\n            return self._nvml_outside\n",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "an allocator that keeps no account is accepted",
        "if backend not in (NATIVE, ASYNC):",
        "if False:",
        "bad_input",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "an allocator that is switched off is accepted",
        "if uncached := [name for name in UNCACHED if name in os.environ]:",
        "if uncached := [name for name in () if name in os.environ]:",
        "bad_input",
        "allocator_settings",
    ),
    in_cuda(
        "memory of unknown owners is not named",
        "if self._nvml is None and unclear > 0 and not self.is_integrated:",
        "if False:",
        "footprint",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory of unknown owners is named where NVML knows them",
        "if self._nvml is None and unclear > 0 and not self.is_integrated:",
        "if unclear > 0 and not self.is_integrated:",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "no caveat says that memory pools count no retries",
        "        if torch.cuda.get_allocator_backend() == ASYNC:\n            found.append(",
        "        if False:\n            found.append(",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "bf16 on any chip",
        "if compute_capability is None or compute_capability >= AMPERE:",
        "if True:",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "tf32 on any chip",
        "if compute_capability is not None and compute_capability >= AMPERE:",
        "if compute_capability is not None:",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "fp16 is unknown", "{Capability.FP16, Capability.CHANNELS_LAST,", "{Capability.CHANNELS_LAST,", "capabilities"
    ),
    in_cuda(
        "the allocator's settings do not distinguish measurements",
        "        if settings := self._allocator():\n",
        '        if settings := "":\n',
        "allocator_settings",
    ),
    in_cuda(
        "powers of two do not distinguish measurements",
        '        if any(divisions.values()):\n            found.append("roundup',
        '        if False:\n            found.append("roundup',
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "rounding to powers of two is ignored in estimates",
        "        if any(divisions.values()):\n            listed",
        "        if False:\n            listed",
        "tests/cuda/test_prediction.py",
    ),
    in_cuda(
        "the maximum split size is ignored in estimates",
        'if (split := known.get("max_split_size", -1)) > 0:',
        'if (split := known.get("max_split_size", -1)) > 2**60:',
        "tests/cuda/test_prediction.py",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "garbage collection is ignored in estimates",
        'if threshold := known.get("garbage_collection_threshold", 0.0):',
        "if threshold := 0.0:",
        "tests/cuda/test_prediction.py",
    ),
    in_cuda(
        "expandable segments are ignored in estimates",
        'if known.get("expandable_segments"):',
        "if False:",
        "tests/cuda/test_prediction.py",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory pools are estimated like the native allocator",
        "if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:",
        "if torch.version.hip is not None:",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "ROCm is estimated like CUDA",
        "if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:",
        "if torch.cuda.get_allocator_backend() != NATIVE:",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory pools do not distinguish measurements",
        "        if backend != NATIVE:\n            return backend\n",
        "",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "what ran before is timed too",
        "        self.synchronize()\n        first.record(stream)\n",
        "        first.record(stream)\n",
        "meter",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "a time is read before the work is done",
        "        last.record(stream)\n        self.synchronize()\n",
        "        last.record(stream)\n",
        "meter",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "milliseconds are seconds", "float(first.elapsed_time(last)) / 1e3", "float(first.elapsed_time(last))", "meter"
    ),
    in_cuda(
        "libraries keep their workspaces",
        "        if clear is not None:\n            clear()\n",
        "",
        "leaks",
        "out_of_memory",
        "footprint",
    ),
    in_cuda(
        "NVML is asked of a chip in main memory",
        "if torch.version.hip is not None or self.is_integrated:",
        "if torch.version.hip is not None:",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
)
