"""Feasibility: whether a plan fits into the memory budget. Screening and searchers ask here, and nowhere else.

`Feasibility` is the public face. `joint_estimate` combines the estimators, `pretrace` chooses the plans that are
estimated before any plan runs, and `peak_model` turns estimates and measured peaks into a probability. `points` and
`surrogate` are also what the default searcher models throughput with.
"""

from autofit.feasibility.feasibility import Feasibility

__all__ = ["Feasibility"]
