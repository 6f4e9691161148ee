"""CUDA's operators on fake tensors: their results, and the memory that they take."""
