"""Strict: the base class of values that reach a file or another process."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """An immutable value that refuses fields which it does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid")
