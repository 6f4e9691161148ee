"""The durable record of trials."""

from autofit.study.location import writing
from autofit.study.study import Study

__all__ = ["Study", "writing"]
