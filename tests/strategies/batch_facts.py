"""Facts of a small workload, for the tests of strategies that look at the user's batches."""

from dataclasses import replace
from typing import Any

from torch import nn

from autofit.strategies.base import Facts
from autofit.workloads.sources import source_of


def facts_of(loader: Any, **changes: Any) -> Facts:
    """Returns the facts of a training on the CPU with this loader, with `changes`."""
    source = source_of(loader)
    given = Facts(
        model=nn.Linear(2, 2),
        batch=None,
        optimizer=None,
        device_type="cpu",
        capabilities=frozenset(),
        numerics="mixed",
        training=True,
        micro_batch_size=source.user_batch_size,
        varies=source.varies,
        source=source,
    )
    return replace(given, **changes)
