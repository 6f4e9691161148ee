"""Account: how a device keeps account of memory, which is what a prediction has to imitate."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Account(BaseModel):
    """How a device keeps account of memory.

    Attributes:
        allocator: "caching" for torch's caching allocator, whose segments count; "host" where live tensors count.
        settings: the caching allocator's options, written as in `PYTORCH_ALLOC_CONF`; "" for torch's defaults.
        outside_bytes: what this process holds on the device outside the allocator: context and libraries.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allocator: Literal["caching", "host"]
    settings: str = ""
    outside_bytes: int = 0
