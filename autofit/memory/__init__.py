"""From a trace to a peak: alignment, scaling, the allocator. Never loads torch."""
