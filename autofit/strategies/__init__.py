"""Training techniques. To add one, write its file and add a line here, or add an entry point in another package."""

from functools import cache

from autofit.plugins import plugins
from autofit.strategies.activation_offload import ActivationOffload
from autofit.strategies.attention import Attention
from autofit.strategies.base import Strategy
from autofit.strategies.batching import Batching
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.compilation import Compilation
from autofit.strategies.cudnn_benchmark import CudnnBenchmark
from autofit.strategies.layout import RankLayout
from autofit.strategies.length_grouping import LengthGrouping
from autofit.strategies.linear_cross_entropy import LinearCrossEntropy
from autofit.strategies.memory_format import MemoryFormat
from autofit.strategies.optimizer_implementation import OptimizerImplementation
from autofit.strategies.optimizer_in_backward import OptimizerInBackward
from autofit.strategies.packing import Packing
from autofit.strategies.precision import Precision

BUILT_IN: tuple[type[Strategy], ...] = (
    MemoryFormat,
    RankLayout,
    CudnnBenchmark,
    Precision,
    OptimizerImplementation,
    OptimizerInBackward,
    Attention,
    LinearCrossEntropy,
    Packing,
    LengthGrouping,
    Compilation,
    Checkpointing,
    ActivationOffload,
    Batching,
)
"""The strategies of autofit itself."""


@cache
def members() -> tuple[Strategy, ...]:
    """Returns every strategy, in the order in which their knobs are shown and first tried.

    Strategies without a time cost come first. Strategies of other packages are loaded on the first call.
    """
    return tuple(member() for member in (*BUILT_IN, *plugins("strategies", Strategy, BUILT_IN, "name")))
