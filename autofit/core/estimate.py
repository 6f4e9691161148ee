"""Estimate: a predicted memory peak with its bounds."""

from pydantic import BaseModel, ConfigDict


class Estimate(BaseModel):
    """A predicted peak, in the reading that the budget is held against.

    Attributes:
        value_bytes: the best guess.
        lower_bytes: the peak is not below this; None when there is no such bound. Only a lower bound
            may keep a plan from being run.
        upper_bytes: the peak is not above this; None when there is no such bound.
        worst_case: whether the value is the most that a plan may take, whatever its data, and not what it will take.
        said_bytes: the best guess as it was before the bounds of others moved it; None where none did. By it is judged
            how far such guesses are off.
        static_bytes: of it, what stays between two steps: no smaller batch saves that; None when not known.
        basis: where the numbers come from, for the reason that a person reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value_bytes: int
    lower_bytes: int | None = None
    upper_bytes: int | None = None
    worst_case: bool = False
    said_bytes: int | None = None
    static_bytes: int | None = None
    basis: str = ""

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound on either side; without one the value is a guess."""
        return self.lower_bytes is not None or self.upper_bytes is not None
