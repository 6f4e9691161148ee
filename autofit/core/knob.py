"""Knob: one named choice with its domain."""

from collections.abc import Sequence

from pydantic import model_validator

from autofit.core.plan import KnobValue, same_value
from autofit.core.strict import Strict

_COLUMNS = ("expected", "growth", "warm_up_s", "ceiling", "frees_bytes")  # what a knob says of each value


class Trade(Strict):
    """How a knob trades time for memory, and how an estimate words it.

    Attributes:
        technique: what the knob applies, such as "checkpointing".
        counted: what its values count, such as "blocks to checkpoint".
        between: whether the whole numbers between its values can be applied too.
    """

    technique: str
    counted: str
    between: bool = False


class Knob(Strict):
    """One named choice with its domain.

    Attributes:
        name: the knob's name in plans, flags, files and reports.
        values: the domain, in its natural order.
        default: the value that leaves the user's setting unchanged; one of `values`.
        about: what the knob does, in one line.
        expected: expected throughput of each value relative to the default, at the same batch size; () if only a probe
            can tell. It is a searcher's starting point only.
        growth: expected memory per sample of each value relative to the default; () if only a probe can tell.
        warm_up_s: least plausible warm-up cost of each value in seconds, such as the time to compile; () if it is none.
        ceiling: largest plausible throughput of each value relative to the default, to see if its warm-up can pay.
        frees_bytes: bytes of memory of no batch, such as optimizer states, that each value is expected to free.
        same_memory: values with the memory per sample of the default, which an estimate of memory does not trace.
        one_pass, accumulated: values that do not admit accumulation (each step must be one pass), and that need it.
        usual: value that an expert writes at once on this device, without trying; None for the default.
        trades_memory: set if the values are whole numbers, ascending from the default, and each needs less memory and
            more time than the one before. An estimate finds the smallest that suffices.
        of_process: whether a process keeps the first value that it runs, so that another value needs another process.
    """

    name: str
    values: tuple[KnobValue, ...]
    default: KnobValue
    about: str = ""
    expected: tuple[float, ...] = ()
    growth: tuple[float, ...] = ()
    warm_up_s: tuple[float, ...] = ()
    ceiling: tuple[float, ...] = ()
    frees_bytes: tuple[int, ...] = ()
    same_memory: tuple[KnobValue, ...] = ()
    one_pass: tuple[KnobValue, ...] = ()
    accumulated: tuple[KnobValue, ...] = ()
    usual: KnobValue | None = None
    trades_memory: Trade | None = None
    of_process: bool = False

    @model_validator(mode="after")
    def _check(self) -> "Knob":
        if not any(same_value(value, self.default) for value in self.values):
            raise ValueError(f"knob {self.name}: the default {self.default!r} is not one of {self.values!r}")
        for expected in (getattr(self, column) for column in _COLUMNS):
            if expected and len(expected) != len(self.values):
                raise ValueError(f"knob {self.name}: {len(expected)} expectations for {len(self.values)} values")
        counts = sorted(value for value in self.values if type(value) is int)
        if self.trades_memory and [self.default, *counts[1:]] != list(self.values):
            raise ValueError(f"knob {self.name}: {self.values!r} are not whole numbers that ascend from the default")
        return self

    def only(self, values: Sequence[KnobValue]) -> "Knob":
        """Returns the knob restricted to these values. The default should be among them."""
        kept = [place for place, value in enumerate(self.values) if any(same_value(value, one) for one in values)]
        columns = {name: getattr(self, name) for name in ("values", *_COLUMNS)}
        usual = self.usual if any(same_value(self.usual, value) for value in values) else None
        return self.model_copy(
            update={"usual": usual}
            | {name: tuple(column[place] for place in kept) if column else () for name, column in columns.items()}
        )

    def admits(self, value: KnobValue) -> bool:
        """Returns whether `value` is in the domain. `True` and `1` are different values."""
        return any(same_value(value, each) for each in self.values)
