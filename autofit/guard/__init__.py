"""Promise 4, no trace: a snapshot of everything the user passed in, restored bit-identically and verified."""

from autofit.guard.guard import Backstop, Guard, leave_surely

__all__ = ["Backstop", "Guard", "leave_surely"]
