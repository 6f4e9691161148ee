"""What the suites of strategies run under, so that a suite over many plans stays quick."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch


@pytest.fixture
def no_kernels() -> Iterator[None]:
    """Captures compiled graphs, forward and backward, and runs them without kernels of their own.

    The kernels of one graph take seconds. What two techniques can break is how the graph is captured.
    """
    compiles = torch.compile

    def capturing(model: Any = None, **options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name in ("fullgraph", "dynamic")}
        return compiles(model, backend="aot_eager", **kept)

    with patch("torch.compile", capturing):
        yield
