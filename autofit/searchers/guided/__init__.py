"""The default searcher: a Gaussian process for speed, estimates corrected by probes for memory."""
