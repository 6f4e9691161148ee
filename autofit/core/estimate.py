"""Estimate: an estimated memory peak with its bounds."""

from autofit.core.strict import Strict


class Estimate(Strict):
    """An estimated peak, in the reading that is compared with the budget.

    Attributes:
        value_bytes: the expected peak.
        lower_bytes: lower bound of the peak; None if there is none. Plans are excluded only by a lower bound.
        upper_bytes: upper bound of the peak; None if there is none.
        worst_case: whether the value is the maximum over all possible data, rather than the expected peak.
        said_bytes: the original value, if bounds from other estimates changed it; else None. The error of an estimator
            is computed from it.
        static_bytes: the part that is kept between steps, which a smaller batch does not reduce; None if unknown.
        basis: source of the numbers, for the reason shown to the user.
    """

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
