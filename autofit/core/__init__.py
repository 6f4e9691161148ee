"""Records, units and errors. Uses pydantic and the standard library only, never torch."""
