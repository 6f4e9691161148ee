"""Training techniques. To add one: write its file, add its line here; or, in another package, an entry point."""

from functools import cache

from autofit.plugins import plugins
from autofit.strategies.base import Strategy
from autofit.strategies.batching import Batching
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.memory_format import MemoryFormat
from autofit.strategies.optimizer_implementation import OptimizerImplementation
from autofit.strategies.precision import Precision

OWN: tuple[type[Strategy], ...] = (MemoryFormat, Precision, OptimizerImplementation, Checkpointing, Batching)
"""Those of autofit itself."""


@cache
def members() -> tuple[Strategy, ...]:
    """Returns every strategy, in the order in which their knobs are shown and first tried.

    Those without a time cost come first. Those of other packages are loaded at the first call.
    """
    return tuple(member() for member in (*OWN, *plugins("strategies", Strategy, OWN, "name")))
