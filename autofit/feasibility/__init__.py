"""Feasibility: whether a plan fits into the memory budget. Screening and searchers ask here, and nowhere else."""

from autofit.feasibility.feasibility import Feasibility

__all__ = ["Feasibility"]
