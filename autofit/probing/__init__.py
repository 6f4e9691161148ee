"""Benches, local and remote: they run, measure and isolate probes, and put everything back."""
