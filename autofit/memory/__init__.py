"""From a trace to its peak memory: alignment, scaling, allocator simulation. Never imports torch."""
