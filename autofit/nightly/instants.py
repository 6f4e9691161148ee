"""Instants: the times in the records of nights, which are texts in ISO 8601."""

from datetime import UTC, datetime


def instant(text: str) -> datetime | None:
    """Returns a time in ISO 8601, in UTC; without a time zone it is UTC. None if the text is not such a time."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
