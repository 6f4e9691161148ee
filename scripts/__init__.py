"""What belongs to the repository and not to the distribution: checks, tests, benchmarks. Run it from the root."""
