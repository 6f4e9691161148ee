"""Control of the phantom GPU from the process that runs torch on it.

    phantom = Phantom()
    phantom.fail_allocation(1)      # the next device allocation fails, once
    ...
    phantom.reset()

Faults and counters are those of this process; processes that share a device share only its memory.
"""

import ctypes

CUDA_ERROR_ILLEGAL_ADDRESS = 700
CUBLAS_STATUS_ALLOC_FAILED = 3


def present() -> bool:
    """Says whether this process runs with the phantom GPU pre-loaded."""
    return hasattr(ctypes.CDLL(None), "phantom_launches")


class Phantom:
    """The phantom GPU of this process.

    Raises:
        RuntimeError: when made in a process without a phantom.
    """

    def __init__(self) -> None:
        if not present():
            raise RuntimeError("there is no phantom GPU in this process; start it with tests/phantom/run.py")
        self._library = ctypes.CDLL(None)

    @property
    def total_bytes(self) -> int:
        """The capacity of the device."""
        return self._read("phantom_total_bytes")

    @property
    def free_bytes(self) -> int:
        """What is really free on the device, whatever `misreport_free` makes it say."""
        return self._read("phantom_free_bytes")

    @property
    def used_bytes(self) -> int:
        """What this process has allocated on the device, without its context."""
        return self._read("phantom_used_bytes")

    @property
    def launches(self) -> int:
        """How many kernels (products and cuDNN plans included) this process has launched."""
        return self._read("phantom_launches")

    @property
    def calls(self) -> int:
        """How many calls that need the device this process has made."""
        return self._read("phantom_calls")

    def set_total(self, total_bytes: int) -> None:
        """Changes the capacity.

        Torch keeps the device's properties as they were when it first asked: `total_memory` stays, and the fraction
        of `set_per_process_memory_fraction` is a fraction of it (torch 2.11). Start with PHANTOM_TOTAL_MIB where
        that matters.

        Raises:
            ValueError: if this process has device memory, or the context would not fit.
        """
        if not self._ask("phantom_set_total", ctypes.c_uint64(total_bytes)):
            raise ValueError(
                f"the capacity cannot become {total_bytes} bytes with {self.used_bytes} bytes allocated; "
                "expected nothing allocated (empty torch's cache) and more than PHANTOM_CONTEXT_MIB"
            )

    def fail_allocation(self, nth: int) -> None:
        """Makes the nth device allocation from now (cudaMalloc or cuMemCreate) fail, once. Torch may try again."""
        self._tell("phantom_fail_allocation", ctypes.c_uint64(_at_least(1, nth)))

    def take(self, taken_bytes: int) -> None:
        """Takes memory away, as another process would; adds to what was taken before.

        Raises:
            ValueError: if the device has less free.
        """
        if not self._ask("phantom_take", ctypes.c_uint64(_at_least(0, taken_bytes))):
            raise ValueError(f"another process cannot take {taken_bytes} bytes: {self.free_bytes} bytes are free")

    def give_back(self) -> None:
        """Gives back all that `take` took."""
        self._tell("phantom_give_back")

    def fail_after(self, calls: int, code: int = CUDA_ERROR_ILLEGAL_ADDRESS) -> None:
        """Poisons the context: every call after that many more fails with this CUDA error until `reset`."""
        self._tell("phantom_fail_after", ctypes.c_uint64(_at_least(0, calls)), ctypes.c_int(_at_least(1, code)))

    def misreport_free(self, free_bytes: int | None) -> None:
        """Makes cudaMemGetInfo say that this much is free; None ends the lie."""
        told = -1 if free_bytes is None else _at_least(0, free_bytes)
        self._tell("phantom_misreport_free", ctypes.c_int64(told))

    def slow(self, us: int) -> None:
        """Makes each launch really sleep that many microseconds; 0 ends it. The virtual clock does not see it."""
        self._tell("phantom_slow", ctypes.c_uint(_at_least(0, us)))

    def fail_gemm(self, status: int = CUBLAS_STATUS_ALLOC_FAILED) -> None:
        """Makes the next cuBLAS product fail with this status, once."""
        self._tell("phantom_fail_gemm", ctypes.c_int(_at_least(1, status)))

    def reset(self) -> None:
        """Ends all faults and heals the context. The capacity stays, and so does what is allocated."""
        self._tell("phantom_reset")

    def _read(self, name: str) -> int:
        function = getattr(self._library, name)
        function.restype = ctypes.c_uint64
        return int(function())

    def _ask(self, name: str, value: ctypes.c_uint64) -> bool:
        function = getattr(self._library, name)
        function.restype = ctypes.c_bool
        return bool(function(value))

    def _tell(self, name: str, *values: object) -> None:
        function = getattr(self._library, name)
        function.restype = None
        function(*values)


def _at_least(least: int, value: int) -> int:
    if value < least:
        raise ValueError(f"found {value}; expected at least {least}")
    return value
