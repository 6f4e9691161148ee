"""A step with activations that grow with the batch, traced, and the law that its traces follow."""

from autofit.memory.alignment import Mismatch
from autofit.memory.scaling import Scaling, scaling
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

MIB = 1 << 20


WEIGHT = 7 * MIB


PARTIALS_MOST = 4 * MIB


def step(size: int, rows: int = 1024, swapped: bool = False, extra: int = 0, square: bool = False) -> Trace:
    """A step with activations that grow with the size, and a sum that takes partial results from `rows` rows on."""
    script = Script(size, modules=("layer",))
    script.take(WEIGHT, Kind.PARAMETER, 0)
    script.mark("step 1 forward")
    first = script.take(3 * MIB * size + 512, Kind.ACTIVATION, 0)
    second = script.take(MIB * size * (size if square else 1), Kind.ACTIVATION)
    script.moment(MIB * size)
    script.mark("step 1 backward")
    gradient = script.take(WEIGHT, Kind.GRADIENT, 0)
    if 256 * size >= rows:
        script.moment(min(MIB * size // 2, PARTIALS_MOST), 8)
    for _ in range(extra):
        script.take(1, Kind.BUFFER)
    script.give(*((first, second) if swapped else (second, first)))
    script.mark("step 1 optimizer")
    script.give(gradient)
    return script.trace()


def law(*traces: Trace) -> Scaling:
    found = scaling(traces)
    assert isinstance(found, Scaling), found
    return found


def at(found: Scaling, size: int) -> Trace:
    trace = found.at(size)
    assert isinstance(trace, Trace), trace
    return trace


def refused(*traces: Trace) -> str:
    found = scaling(traces)
    assert isinstance(found, Mismatch), found
    return found.reason
