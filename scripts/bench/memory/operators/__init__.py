"""The memory of single operators: what a trace gets wrong about them."""
