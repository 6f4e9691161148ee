"""The stages of `scripts/gpu_suite`. Each is a program, for example `python -m scripts.bench.gpu.steps --help`."""
