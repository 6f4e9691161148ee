"""CUDA's operators on fake tensors: their results and their memory."""
