"""A simulation of torch's caching allocator."""
