"""The nouns that are records, with units and errors: pydantic and the standard library only, never torch."""
