"""Digests of a workload's structure, code and options, which decide whether measurements are comparable."""
