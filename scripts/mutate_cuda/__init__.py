"""Mutations of the CUDA path, each of which a test must notice: `scripts/mutate-cuda`."""
