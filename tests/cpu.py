"""What the CPU of this machine can do, for tests that need it."""

import pytest

from autofit import devices

BF16 = "bf16" in devices.choose("cpu").capabilities()
needs_bf16 = pytest.mark.skipif(not BF16, reason="this CPU does not compute in bf16")
