"""Account: how a device accounts for memory, which an estimate has to imitate."""

from typing import Literal

from autofit.core.strict import Strict


class Account(Strict):
    """How a device accounts for memory.

    Attributes:
        allocator: "caching" for torch's caching allocator, whose segments are counted; "host" if live tensors are.
        settings: options of the caching allocator in the syntax of `PYTORCH_ALLOC_CONF`; "" for torch's defaults.
        outside_bytes: memory that this process holds on the device outside the allocator: context and libraries.
    """

    allocator: Literal["caching", "host"]
    settings: str = ""
    outside_bytes: int = 0
