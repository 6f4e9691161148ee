"""What the tests of a fleet share."""

from tests.postgres import postgres

__all__ = ["postgres"]
