"""The durable record of trials."""

from autofit.study.place import writing
from autofit.study.study import Study

__all__ = ["Study", "writing"]
