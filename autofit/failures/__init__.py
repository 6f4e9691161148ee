"""From an exception to an outcome."""
