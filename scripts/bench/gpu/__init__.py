"""The stages of `scripts/gpu_suite`, each a program: `python -m scripts.bench.gpu.steps --help`."""
