"""Training techniques. To add one: write its file, add its line here."""

from autofit.strategies.base import Strategy
from autofit.strategies.batching import Batching
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.memory_format import MemoryFormat
from autofit.strategies.optimizer_implementation import OptimizerImplementation
from autofit.strategies.precision import Precision

MEMBERS: tuple[Strategy, ...] = (
    MemoryFormat(),
    Precision(),
    OptimizerImplementation(),
    Checkpointing(),
    Batching(),
)
"""Every strategy, in the order in which their knobs are shown and first tried: those without a time cost come first."""
