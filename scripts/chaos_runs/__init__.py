"""Searches of small workloads with a fault at a random place: `scripts/chaos`."""
