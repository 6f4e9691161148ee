"""Estimate: an estimated memory peak with its bounds."""

from pydantic import BaseModel, ConfigDict


class Estimate(BaseModel):
    """An estimated peak, in the reading that is compared with the budget.

    Attributes:
        value_bytes: the expected peak.
        lower_bytes: lower bound of the peak; None if there is none. Only a lower bound can keep a plan from being run.
        upper_bytes: upper bound of the peak; None if there is none.
        worst_case: whether the value is the maximum over all possible data, rather than the expected peak.
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
        """Whether there is a bound on either side. Without one the value is a guess."""
        return self.lower_bytes is not None or self.upper_bytes is not None
