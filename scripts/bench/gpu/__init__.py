"""The stages of `scripts/gpu_suite`, each a program: `PYTHONPATH=.:scripts/bench python -m gpu.steps --help`."""
