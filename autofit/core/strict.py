"""Strict: the base class of values that reach a file or another process."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 1e30
"""Limit of rates, ratios and times: a report of any record can compute with them."""
Positive = Annotated[float, Field(gt=0, lt=LARGEST)]
Elapsed = Annotated[float, Field(ge=0, lt=LARGEST)]
"""A rate or a ratio; and a time in seconds."""


class Strict(BaseModel):
    """An immutable value that refuses fields which it does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid")
